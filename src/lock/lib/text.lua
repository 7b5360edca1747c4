-- Numbers and tokens as text.
local function int_text(number) return string.format('%.0f', number) end

-- How others may call a token without learning it.
local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end
