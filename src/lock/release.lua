-- release: give our lock or our place in the queue back, and let the next in.
-- KEYS: see promote
-- ARGV: 4 token, 5 early (1: its run goes on without it, 0: that was all), 6 how the run ended ('' when there was none), 7 keep (ms that the lock stays ours from when we got it, or 0)
-- Returns: {1} when given back; {3, ms left} when kept; {2} when it had been given back before; {0, who forced us out or nil, entry of a holder or nil} when it wasn't ours
local token, early, how, keep = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' then entry = false end
local mark = look(how ~= '' and token)
local ours = is_held(token, mark)

-- What became of a hold: in the history, where a repeated request finds that the first one was done.
local function note_end()
  if not entry or how == '' then return end
  local by = false
  if how == 'cancelled' then
    by = word('cancelled', token)
    redis.call('HDEL', state, 'cancelled:' .. id(token))
  end
  log(token, entry, now, ours and how or 'lost', by or '')
  -- Its claim may have been lost on its way.
  if ours and string.match(entry, '^%d+ %d+ %d+ %d+ %d+ granted[: ]') then note_order(entry) end
  if how == 'status:0' and ours then set_state('succeeded', digits(now)) end
end

-- Kept for a while, although nobody is left who could be found dead.
local start, since = string.match(entry or '', '^(%d+ (%d+) %d+ %d+ %d+) ')
local left = math.min(keep, tonumber(since or 0) + keep - now)
if ours and start and left > 0 then
  if mark == token then
    redis.call('PEXPIRE', lock, digits(left))
    redis.call('PEXPIRE', meta, digits(left + KEPT))
  else
    lengthen(holders, left + KEPT)
    redis.call('PEXPIRE', lock, digits(math.max(left, redis.call('PTTL', lock))))
    redis.call('ZADD', holders, digits(now + left), token)
  end
  local who = string.gsub(string.match(entry, '({.*)$') or '{}', ',?"instance":"[^"]*"', '')
  redis.call('HSET', meta, token, start .. ' kept ' .. who)
  note_end()
  list(left)
  -- The first in the queue has been told another time.
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head then redis.pcall('PUBLISH', channels .. id(head), 'kept') end
  return {3, left}
end

local granted = false
local place = not ours and redis.call('ZSCORE', queue, token)
if ours then
  -- How many hear of the grant: as many as so long a hold can pay for.
  local tells = math.floor((now - tonumber(since or now)) / 20)
  if mark == token then
    -- Nobody stands in the way of the next one; what that one doesn't overwrite goes after it.
    granted = promote(false, nil, tells)
    if granted then redis.pcall('HDEL', meta, token) else set_free() end
  else
    remove(token)
    granted = promote(regroup(mark), nil, tells)
  end
elseif place then
  -- Also where it knows its ticket: a first request of its own that comes late must not pass for a newer one.
  dequeue(token, place, '0')
  -- A key of another type isn't ours to look into.
  if type(mark) ~= 'table' then granted = promote(mark) end
else
  local answer = not_held(token, mark)
  redis.call('HDEL', meta, token)
  if early == '0' then
    redis.call('HDEL', state, 'forced:' .. id(token), 'returned:' .. id(token), 'extended:' .. id(token))
  end
  if answer[1] == 0 then
    -- Nothing was done under it, so that nothing was lost with it; or it was kept for a while that is over.
    if how == '' or string.match(entry or '', '^%d+ %d+ %d+ %d+ %d+ kept ') then return {1} end
    -- How its hold ended, if that is one of the last.
    local ended = nil
    for _, record in ipairs(not entry and redis.pcall('LRANGE', history, 0, 99) or {}) do
      local whose, how = string.match(record, '^(%x+) %d+ (%S+) ')
      if whose == id(token) then
        ended = how
        break
      end
    end
    if ended and ended ~= 'lost' and ended ~= 'forced' and ended ~= 'expired' then
      return {early == '1' and 2 or 1}
    end
  end
  note_end()
  return answer
end
note_end()
-- Only a process that watches over the lock would read it.
if early == '1' and string.find(entry or '', '"instance":"', 1, true) then
  leave_word('returned', token, '')
end
if not granted and type(mark) ~= 'table' then unlist(mark == token) end
return {1}
