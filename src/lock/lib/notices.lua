-- Notices for tokens: what has happened to their holds, to be read with their next request.
-- @include text

local MOST_NOTICES = 1000 -- how many are kept

-- The notice of a kind that was posted for a token, or false.
local function notice(kind, token)
  local posted = redis.call('HGET', state, kind .. ':' .. id(token))
  return posted and string.match(posted, '^%d+ (.*)$')
end

-- Posts a notice for the run that holds a lock: who forced it out ('forced'), that its job has
-- released the lock ('released'), or who wants it to end ('cancelled'); or, for a waiter that has left the queue and may not know its ticket, that ticket ('left');
-- or, for one that was taken out of it, or whose grant was taken away before it was confirmed, who did that
-- ('removed'); nobody, when its own run has withdrawn it.
-- The last ones are kept, even if their runs have ended.
local function post_notice(kind, token, text)
  local field = kind .. ':' .. id(token)
  if redis.call('HEXISTS', state, field) == 0 then
    local count = tonumber(redis.call('HGET', state, 'notices') or 0) + 1
    local place = 'notices:' .. count % MOST_NOTICES
    local oldest = redis.call('HGET', state, place)
    if oldest then redis.call('HDEL', state, oldest) end
    redis.call('HSET', state, 'notices', int_text(count), place, field)
  end
  redis.call('HSET', state, field, int_text(now_ms) .. ' ' .. text)
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
end
