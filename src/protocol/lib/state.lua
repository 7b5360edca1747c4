-- Expiries, and the fields of the state.
-- @include text

-- Makes a key live for at least `ms` milliseconds.
local function extend_expiry(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, int_text(ms)) end
end

-- Writes fields of the state. Every new ticket, and the first grant of a day, refresh its expiry. So the expiry is
-- missing only if another client has deleted the state meanwhile.
local function set_state(...)
  redis.call('HSET', state, ...)
  if not last_fence then redis.call('PEXPIRE', state, int_text(2 * RETENTION)) end
end

-- Adds one to a counter in the state.
local function add_one(counter)
  set_state(counter, int_text((tonumber(redis.call('HGET', state, counter)) or 0) + 1))
end
