-- Numbers and tokens as text.
local function int_text(number) return string.format('%.0f', number) end

-- Returns the id of a token: a name that doesn't reveal it.
local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end
