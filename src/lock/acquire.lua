-- acquire: take the lock, claim a grant, or take a place in the queue; also the heartbeat of one who waits.
-- KEYS: see promote
-- ARGV: 3 token, 4 ttl (ms), 5 limit, 6 who (JSON), 7 place ('' none, 'listen' or 'poll'), 8 ticket ('' for a new one), 9 priority, 10 order ('fifo' or 'lifo'), 11 supersede (1 or 0)
-- Returns: {1, fence, slot} when held; {0, server time (ms), waiters ahead, ticket, 1 if it must poll, ms left (-1: never), holders, id of one or nil, its entry or nil} when busy; {2, by (JSON)} when superseded
local token, ttl, limit, who = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local place, ticket, priority, order, supersede = ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local QUEUED = 100000 -- how long the queue outlives its last heartbeat, ms: three of the longest

-- It is ours: a grant to claim, or a reply was lost.
local function claim(mark)
  extend(token, mark, ttl)
  local fence, slot = string.match(redis.call('HGET', meta, token) or '', '^(%d+) %d+ %d+ (%d+) ')
  return {1, fence or next_fence(), tonumber(slot or 0)}
end

local function busy(ahead, polls)
  local mark = redis.call('GET', lock)
  local holder, left, count = mark, 0, 1
  if not mark then
    count = 0
  elseif GROUP[mark] then
    local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    holder, count = first[1], redis.call('ZCARD', holders)
    left = math.max(0, tonumber(first[2] or 0) - now)
  else
    left = redis.call('PTTL', lock)
  end
  local entry = holder and redis.call('HGET', meta, holder)
  return {0, digits(now), ahead, ticket, polls, left, count, holder and id(holder), entry}
end

local mark = redis.call('GET', lock)
if is_held(token, mark) then return claim(mark) end
-- What is left of holders that died, or whose lock somebody deleted.
if not mark then redis.call('DEL', meta, holders) end

-- Somebody who came later has told the older ones to give up.
if ticket ~= '' then
  local newest = redis.call('HMGET', state, 'superseded', 'superseded_by')
  if tonumber(ticket) < tonumber(newest[1] or 0) then
    redis.call('ZREM', queue, token)
    redis.call('HDEL', waiters, token)
    if promote(mark) then lengthen(meta, 2 * CLAIM) end
    unlist()
    return {2, newest[2]}
  end
end

local queued = redis.call('EXISTS', queue) == 1
if queued and place == '' then
  -- Perhaps nobody in the queue is alive.
  if promote(mark) then lengthen(meta, 2 * CLAIM) end
  queued = redis.call('EXISTS', queue) == 1
  mark = redis.call('GET', lock)
end
if not queued then
  local slot = room(limit, mark)
  if slot then
    local fence = next_fence()
    hold(token, limit, slot, ttl, fence, who)
    redis.call('PEXPIRE', state, KEPT)
    lengthen(meta, 2 * ttl)
    list(2 * ttl)
    return {1, fence, slot}
  end
end
if place == '' then return busy(redis.call('ZCARD', queue), 0) end

-- From here on it is one who waits.
local polls = place == 'poll'
local last = tonumber(redis.call('HGET', state, 'ticket') or 0)
local since = string.match(redis.call('HGET', waiters, token) or '', '^%d+ %d+ (%d+) ')
if not redis.call('ZSCORE', queue, token) then
  local is_new = ticket == ''
  if is_new then ticket = digits(last + 1) end
  -- Whoever comes back with an old ticket gets its old place; no new ticket is smaller than that.
  if tonumber(ticket) > last then redis.call('HSET', state, 'ticket', ticket) end
  redis.call('PEXPIRE', state, KEPT)
  local score = tonumber(ticket)
  if order == 'lifo' then score = -score end
  redis.call('ZADD', queue, digits(score - tonumber(priority) * 2 ^ 42), token)
  if is_new and supersede == '1' then
    for _, older in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
      if older ~= token then
        redis.call('ZREM', queue, older)
        redis.call('HDEL', waiters, older)
        redis.pcall('PUBLISH', channels .. id(older), 'superseded')
      end
    end
    redis.call('HSET', state, 'superseded', ticket, 'superseded_by', who)
  end
  -- Somebody whom no message can reach has to look by itself.
  if not polls then polls = (tonumber(redis.pcall('PUBLISH', channels .. id(token), 'hello')) or 0) == 0 end
end
-- An entry lives for three heartbeats.
local beat = math.min(2000 * (1 + redis.call('ZRANK', queue, token) / 4), 30000)
local entry = {digits(now + 3 * beat), digits(limit), since or digits(now), priority, polls and '0' or '1', who}
redis.call('HSET', waiters, token, table.concat(entry, ' '))
redis.call('PEXPIRE', queue, QUEUED)
redis.call('PEXPIRE', waiters, QUEUED)
list(QUEUED)
local granted, mine = promote(mark, token)
if mine then return claim(redis.call('GET', lock)) end
if granted then lengthen(meta, 2 * CLAIM) end
return busy(redis.call('ZRANK', queue, token), polls and 1 or 0)
