-- acquire: take the lock, claim a grant, or take a place in the queue; also the heartbeat of one who waits.
-- KEYS: see promote
-- ARGV: 4 token, 5 ttl (ms), 6 limit, 7 who (JSON), 8 place ('' none, 'listen' or 'poll'), 9 ticket ('' for a new one), 10 priority, 11 order ('fifo' or 'lifo'), 12 supersede (0: no, 1: the older ones in the queue, 2: the holders too), 13 number in an outside order or '', 14 once (ms that a success counts, or 0), 15 repair (1 or 0)
-- Returns: {1, fence, slot, ms since the last success or -1} when held; {0, server time (ms), waiters ahead, ticket, 1 if it must poll, ms left (-1: never), holders, id of one or nil, its entry or nil, what froze it or nil, 1 if it was repaired} when busy; {2, by (JSON)} when superseded; {3, ms since the last success} when that is enough
local token, ttl, limit, who = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local place, ticket, priority, order = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local supersede, number, once, repair = ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[15]
local QUEUED = 100000 -- how long the queue outlives its last heartbeat, ms: three of the longest

local success = succeeded and now - tonumber(succeeded) or -1
local repaired = 0

-- It is ours: a grant to claim, or a reply was lost.
local function claim(mark)
  extend(token, mark, ttl)
  local fence, slot = string.match(claimed(token), '^(%d+) %d+ %d+ (%d+) ')
  return {1, fence or next_fence(), tonumber(slot or 0), success}
end

local function busy(ahead, polls)
  local mark = redis.call('GET', lock)
  local holder, left, count = mark, 0, 1
  if not mark or mark == FROZEN then
    holder, count = false, 0
    if frozen > 0 then left = frozen - now end
  elseif GROUP[mark] then
    local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    holder, count = first[1], redis.call('ZCARD', holders)
    left = math.max(0, tonumber(first[2] or 0) - now)
  else
    left = redis.call('PTTL', lock)
    if left == -1 and repair == '1' then
      redis.call('PEXPIRE', lock, ttl)
      left, repaired = ttl, 1
    end
  end
  local entry = holder and redis.call('HGET', meta, holder)
  return {0, digits(now), ahead, ticket, polls, left, count, holder and id(holder), entry, frozen > 0 and freeze, repaired}
end

-- A newer one makes it give up.
local function superseded(by)
  if redis.call('ZREM', queue, token) == 1 then
    redis.call('HDEL', waiters, token)
    if promote(redis.call('GET', lock)) then lengthen(meta, CLAIM + KEPT) end
    unlist()
  end
  return {2, by}
end

-- It has a place in the outside order now.
local function note_number()
  if number then redis.call('HSET', state, 'number', digits(number), 'number_by', who) end
end

if success >= 0 and success < once then return {3, success} end
local mark = redis.call('GET', lock)
if is_held(token, mark) then return claim(mark) end
if not mark then
  sweep()
  if frozen > 0 then
    set_free()
    mark = FROZEN
  end
end

if number then
  local newest = redis.call('HMGET', state, 'number', 'number_by')
  if number < tonumber(newest[1] or number) then return superseded(newest[2]) end
end
-- Somebody who came later has told the older ones to give up.
if ticket ~= '' then
  local newest = redis.call('HMGET', state, 'superseded', 'superseded_by')
  if tonumber(ticket) < tonumber(newest[1] or 0) then return superseded(newest[2]) end
end

local queued = redis.call('EXISTS', queue) == 1
if queued and place == '' then
  -- Perhaps nobody in the queue is alive.
  if promote(mark) then lengthen(meta, CLAIM + KEPT) end
  queued = redis.call('EXISTS', queue) == 1
  mark = redis.call('GET', lock)
end
if not queued then
  local slot = room(limit, mark)
  if slot then
    local fence = next_fence()
    hold(token, limit, slot, ttl, fence, 0, 'held', who)
    note_number()
    keep_memory()
    lengthen(meta, ttl + KEPT)
    list(2 * ttl)
    return {1, fence, slot, success}
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
  redis.call('PEXPIRE', state, digits(2 * KEPT))
  note_number()
  local score = tonumber(ticket)
  if order == 'lifo' then score = -score end
  redis.call('ZADD', queue, digits(score - tonumber(priority) * 2 ^ 42), token)
  if is_new and supersede ~= '0' then
    for _, older in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
      if older ~= token then
        redis.call('ZREM', queue, older)
        redis.call('HDEL', waiters, older)
        redis.pcall('PUBLISH', channels .. id(older), 'superseded')
      end
    end
    redis.call('HSET', state, 'superseded', ticket, 'superseded_by', who)
  end
  if is_new and supersede == '2' and mark then
    local held = {mark}
    if GROUP[mark] then held = redis.call('ZRANGE', holders, 0, -1) end
    for _, holder in ipairs(held) do
      local running = redis.call('HGET', meta, holder) or ''
      if string.find(running, '"instance":"', 1, true) then
        leave_word('cancelled', holder, who)
        -- Written so that those who watch it look.
        redis.call('SET', lock, mark, 'KEEPTTL')
      end
    end
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
if granted then lengthen(meta, CLAIM + KEPT) end
return busy(redis.call('ZRANK', queue, token), polls and 1 or 0)
