-- Notices for tokens: what has happened to them while they weren't heard.
-- @include text

local MOST_NOTICES = 1000 -- how many are kept

-- The word of a kind that was left for a token, or false.
local function notice(kind, token)
  local said = redis.call('HGET', state, kind .. ':' .. id(token))
  return said and string.match(said, '^%d+ (.*)$')
end

-- Leaves a notice for the run that holds a lock: who forced it out ('forced'), that its job has
-- released the lock ('returned'), who wants it to end ('cancelled'), or for how long its job has extended
-- the lock ('extended'); or for one that has left the queue and may not know its ticket: that ('left').
-- The last ones are kept, also where none is left to read them.
local function post_notice(kind, token, text)
  local field = kind .. ':' .. id(token)
  if redis.call('HEXISTS', state, field) == 0 then
    local count = tonumber(redis.call('HGET', state, 'words') or 0) + 1
    local place = 'words:' .. count % MOST_NOTICES
    local oldest = redis.call('HGET', state, place)
    if oldest then redis.call('HDEL', state, oldest) end
    redis.call('HSET', state, 'words', int_text(count), place, field)
  end
  redis.call('HSET', state, field, int_text(now_ms) .. ' ' .. text)
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
end
