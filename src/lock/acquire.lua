-- acquire: take the lock, claim a grant, or take a place in the queue; also the heartbeat of one who waits.
-- KEYS: see promote
-- ARGV: 4 token, 5 ttl (ms), 6 limit, 7 who (JSON), 8 place ('' none, 'listen' or 'poll'), 9 ticket ('' for a new one, or one whose number was lost with a reply), 10 priority, 11 order ('fifo' or 'lifo'), 12 supersede (0: no, 1: the older ones in the queue, 2: the holders too), 13 number in an outside order or '', 14 once (ms that a success counts, or 0), 15 repair (1 or 0)
-- Returns: {1, fence, slot, ms since the last success or -1} when held; {0, server time (ms), waiters ahead, ticket, 1 if it must poll, ms left (-1: never), holders, id of one or nil, its entry or nil, what froze it or nil, 1 if it was repaired, 1 if all in the queue are to look when that time is over} when busy; {2, by (JSON)} when superseded; {3, ms since the last success} when that is enough
local token, ttl, limit, who = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local place, ticket, priority, order = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local supersede, number, once, repair = ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[15]
local QUEUED = 100000 -- how long the queue outlives its last heartbeat, ms: three of the longest

-- Its entries tell others of its number.
if number then who = string.gsub(who, '^{', '{"order":' .. digits(number) .. ',', 1) end

local success = succeeded and math.max(0, now - tonumber(succeeded)) or -1
local repaired = 0

-- It is ours: a grant to claim, or a reply was lost.
local function claim(mark)
  -- A grant lasts longer than the shortest lease. Nobody works under one that is claimed here, so that it
  -- may become shorter.
  local _, phase = string.match(ttl < HEARD and redis.call('HGET', meta, token) or '', PHASE)
  extend(token, mark, ttl, phase == 'granted')
  local fence, slot = string.match(claimed(token, mark, ttl), '^(%d+) %d+ %d+ (%d+) ')
  if not fence then
    fence = next_fence()
    set_state('fence', fence)
  end
  return {1, fence, tonumber(slot or 0), success}
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
  -- A grant that isn't claimed may have gone to one that stands still, and so may those who come next.
  local _, phase = string.match(entry or '', PHASE)
  local all = phase == 'granted' and 1 or 0
  return {0, digits(now), ahead, ticket, polls, left, count, holder and id(holder), entry, frozen > 0 and freeze, repaired, all}
end

-- A newer one makes it give up.
local function superseded(by)
  if redis.call('ZREM', queue, token) == 1 then
    redis.call('HDEL', waiters, token)
    promote(look())
    unlist()
  end
  return {2, by or ''}
end

if success >= 0 and success < once then return {3, success} end
local mark = look()
if type(mark) == 'table' then return mark end
if is_held(token, mark) then return claim(mark) end
if not mark and frozen > 0 then
  set_free()
  mark = FROZEN
end

local score, own_id = false, false
if place ~= '' then
  -- The server knows the number by the token, also for a minute after that has left the queue.
  score = redis.call('ZSCORE', queue, token)
  if score then
    ticket = digits(ticket_of(tonumber(score)))
  elseif ticket == '' then
    own_id = id(token)
    local left_at, its = string.match(redis.call('HGET', state, 'left:' .. own_id) or '', '^(%d+) (%d+)$')
    if left_at and now - tonumber(left_at) <= 60000 then ticket = its end
    -- Its grant has run out, and another client has got the lock since.
    local _, _, granted = string.match(redis.call('HGET', meta, token) or '', PHASE)
    if granted and granted ~= '' then ticket = granted end
  end
end
-- Somebody has a larger number in the outside order: the last one that held the lock, or one that waits. One
-- that has left the queue without the lock displaces nobody.
if number then
  local newest, by, waiter = unpack(redis.call('HMGET', state, 'number', 'number_by', 'number_waits'))
  if number < (tonumber(newest) or number) then return superseded(by) end
  for _, entry in ipairs({redis.call('HGET', waiters, waiter or ''), redis.call('HGET', meta, mark or '')}) do
    local theirs, who = order_of(entry or '')
    if theirs and number < tonumber(theirs) then return superseded(who) end
  end
end
-- Somebody who came later has told the older ones to give up.
if ticket ~= '' then
  local newest = redis.call('HMGET', state, 'superseded', 'superseded_by')
  if tonumber(ticket) < tonumber(newest[1] or 0) then return superseded(newest[2]) end
end

local queued = redis.call('EXISTS', queue) == 1
if queued and place == '' then
  -- Perhaps nobody in the queue is alive.
  promote(mark)
  queued = redis.call('EXISTS', queue) == 1
  mark = redis.call('GET', lock)
end

-- The last number that was given. It never falls below those in the queue, whatever becomes of the state.
local function last_ticket()
  local last = tonumber(redis.call('HGET', state, 'ticket'))
  if last or not queued then return last or 0 end
  last = 0
  local all = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
  for n = 2, #all, 2 do last = math.max(last, ticket_of(tonumber(all[n]))) end
  return last
end

if not queued then
  local slot = room(limit, mark)
  if slot then
    local fence = next_fence()
    hold(mark, token, limit, slot, ttl, fence, 0, 'held', who)
    if number then set_state('number', digits(number), 'number_by', who) end
    if supersede ~= '0' and ticket == '' then
      local newest = digits(last_ticket() + 1)
      -- Older ones that have left the queue are not to follow it either.
      set_state('ticket', newest, 'superseded', newest, 'superseded_by', who)
    end
    keep_memory()
    list(2 * ttl)
    return {1, fence, slot, success}
  end
end
if place == '' then return busy(redis.call('ZCARD', queue), 0) end

-- From here on it is one who waits.
local polls = place == 'poll'
local since = string.match(redis.call('HGET', waiters, token) or '', '^%S+ %d+ (%d+) ')
local is_new = ticket == ''
-- One that had its place before keeps it, and its turn, also on a full server.
if not is_new then redis.call('PEXPIRE', waiters, QUEUED) end
if not score then
  local last = last_ticket()
  if is_new then ticket = digits(last + 1) end
  -- One that comes back with an old ticket gets its old place; no new ticket is smaller than that.
  set_state('ticket', digits(math.max(last, tonumber(ticket))))
  redis.call('PEXPIRE', state, digits(2 * KEPT))
  if number then set_state('number_waits', token) end
  local turn = tonumber(ticket)
  if order == 'lifo' then turn = -turn end
  redis.call('ZADD', queue, digits(turn - tonumber(priority) * ROUND), token)
  if is_new and supersede ~= '0' then
    local older = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
    for n = 1, #older, 2 do
      if older[n] ~= token then
        -- Also where it knows its ticket: a first request of its own that comes late must not pass for a newer one.
        dequeue(older[n], older[n + 1], '0')
        redis.pcall('PUBLISH', channels .. id(older[n]), 'superseded')
      end
    end
    set_state('superseded', ticket, 'superseded_by', who)
    -- The same request that comes once more, when its run is over, must not pass for a newer one.
    leave_word('left', token, ticket)
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
  if not polls then polls = (tonumber(redis.pcall('PUBLISH', channels .. (own_id or id(token)), 'hello')) or 0) == 0 end
end
-- An entry lives for three heartbeats.
local ahead = redis.call('ZRANK', queue, token)
local beat = math.min(2000 + 500 * ahead, 8000 + 8 * ahead, 30000)
local life = table.concat({digits(now + 3 * beat), digits(now), ARGV[9] == '' and '0' or '1'}, ':')
local entry = {life, digits(limit), since or digits(now), priority, polls and '0' or '1', who}
redis.call('HSET', waiters, token, table.concat(entry, ' '))
redis.call('PEXPIRE', queue, QUEUED)
redis.call('PEXPIRE', waiters, QUEUED)
list(QUEUED)
local _, mine = promote(mark, token)
if mine then return claim(redis.call('GET', lock)) end
return busy(redis.call('ZRANK', queue, token), polls and 1 or 0)
