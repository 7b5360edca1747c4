-- acquire: take the lock, confirm a grant, or take a place in the queue; also the heartbeat of a waiter.
-- ARGV[4] token
-- ARGV[5] ttl (ms)
-- ARGV[6] limit
-- ARGV[7] who (JSON)
-- ARGV[8] place ('' none; it listens to its channel, 'listen', or, in a cluster, to that of its slot, 'shard'; or 'poll')
-- ARGV[9] ticket ('' for a new one, or one whose number was lost with a reply)
-- ARGV[10] supersede (0: no, 1: the older ones in the queue, 2: the holders too)
-- ARGV[11] number in an outside order or ''
-- ARGV[12] once (ms that a success counts, 0, or '=' and the key with which one counts)
-- ARGV[13] repair (1 or 0)
-- ARGV[14] sync (1: replicas have to have the grant before it counts, which a renewal confirms then; '' or left out otherwise)
-- ARGV[15] behind how many others it doesn't wait ('' or left out when it waits behind any number)
-- Returns {1, fence, slot} when held; {0, server time (ms), waiters ahead, ticket, 1 if it must poll, ms left (-1: never), holders, id of one or nil, its entry or nil, what froze it or nil, 1 if it was repaired, 1 if dead waiters are left in front of it, which it clears away by asking again, who has asked that holder to end or nil} when busy; {2, by (JSON)} when superseded; {3, ms since the last success} when that is enough; {4, by (JSON)} when a person, or a newer run, doesn't want it to run any more: it releases what it has; {5, how many} when so many wait already
-- @include lock
-- @include text

local token, ttl, limit, who = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local place, ticket, supersede, number = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local once, repair, sync, most_waiting = ARGV[12], ARGV[13], (ARGV[14] or '') ~= '', tonumber(ARGV[15] or '')

-- A single function: those in it reach the variables above through it. Each would take longer to look them up itself than the
-- commands take.
return (function()

-- @include lease
-- @include once

-- A run that ignores the freeze waits for none that the freeze keeps out.
local is_exempt = ignores_freezes(who)
local is_kept_out = frozen > 0 and not is_exempt
local others = is_kept_out and queue or line

-- Others read its number in its entries.
if number then who = string.gsub(who, '^{', '{"order":' .. int_text(number) .. ',', 1) end

local repaired = 0

-- The token has the lock already: by a grant to be confirmed, or by a request whose reply was lost.
local function accept(value)
  extend_lease(token, value, ttl)
  local hold = read_hold(confirm(token, value, ttl, sync))
  local fence = hold.fence or next_fence()
  if not hold.fence then set_state('fence', fence) end
  return {1, fence, tonumber(hold.slot or 0)}
end

-- `more`: dead waiters are left in front of it.
local function busy(ahead, polls, more)
  local value = redis.call('GET', lock)
  local holder, left, count = value, 0, 1
  if not value or value == FROZEN then
    holder, count, left = false, 0, is_kept_out and frozen - now_ms or 0
  elseif SHARED_VALUES[value] then
    local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    holder, count = first[1], redis.call('ZCARD', holders)
    left = math.max(0, tonumber(first[2] or 0) - now_ms)
  else
    left = redis.call('PTTL', lock)
    if left == -1 and repair == '1' then
      redis.call('PEXPIRE', lock, ttl)
      left, repaired = ttl, 1
    end
  end
  -- If slots are free, the lock is free when the freeze ends.
  if is_kept_out then left = math.min(left, frozen - now_ms) end
  local entry = holder and redis.call('HGET', meta, holder)
  local stopping = holder and cancelled_by(holder, entry)
  return {0, int_text(now_ms), ahead, ticket, polls, left, count, holder and id(holder), entry, is_kept_out and freeze, repaired, more and 1 or 0, stopping or false}
end

-- A newer run makes this one give up.
local function give_up(by)
  local its = redis.call('ZSCORE', queue, token)
  if its then
    supersede_waiter(token, its)
    grant_next(lock_value())
    retire_name()
  end
  return {2, by or ''}
end

local key = string.match(once, '^=(.+)$')
local success = key and succeeded_with(key) or not key and tonumber(succeeded)
local ago = success and math.max(0, now_ms - success)
if ago and (key or ago < tonumber(once)) then return {3, ago} end
local value = lock_value()
if type(value) == 'table' then return value end
if is_held(token, value) then
  -- Who reads this hasn't started its command. A request that arrives late may be that of a run that has,
  -- so that nothing is freed here.
  local cancelled = cancelled_by(token, redis.call('HGET', meta, token))
  if cancelled then
    -- Asked once more when its lease is over, it is answered the same. A write that a full server accepts comes first.
    redis.call('PEXPIRE', state, int_text(2 * RETENTION))
    post_notice('cancelled', token, cancelled, DAY)
    return {4, cancelled}
  end
  return accept(value)
end
if not value and frozen > 0 then
  clear_lock()
  value = FROZEN
end

local score, cancelled = false, false
-- The server knows the number by the token, also for a while after that has left the queue.
if place ~= '' then score = redis.call('ZSCORE', queue, token) end
if score then
  ticket = int_text(tonumber(score))
else
  -- A person doesn't want it to wait any more, or has stopped it when its grant wasn't confirmed yet. Or its own
  -- run has withdrawn it, and this request was held up on its way.
  local removed = notice('removed', token)
  if removed then return {4, removed} end
  cancelled = notice('cancelled', token)
  if ticket == '' then
    ticket = notice('left', token) or ''
    -- Its grant has run out, and another client has got the lock since.
    local hold = read_hold(redis.call('HGET', meta, token))
    if hold.phase == 'granted' then ticket = hold.number end
  end
end
-- Another run has a larger number in the outside order: the last holder, or a waiter, also one that has got a
-- grant. One that has left the queue without the lock displaces no other.
if number then
  local newest, by, waiter, granted = unpack(redis.call('HMGET', state, 'number', 'number_by', 'number_waits', 'number_granted'))
  if number < (tonumber(newest) or number) then return give_up(by) end
  waiter = waiter or ''
  local holds = redis.call('HMGET', meta, waiter, granted or '', value or '')
  for _, entry in ipairs({redis.call('HGET', waiters, waiter), unpack(holds)}) do
    local theirs, who = order_of(entry or '')
    if theirs and number < tonumber(theirs) then return give_up(who) end
  end
end
-- A run that came later has made the older ones give up.
if ticket ~= '' and is_superseded(ticket, who) then return give_up(redis.call('HGET', state, 'superseded_by')) end
if cancelled then return {4, cancelled} end

local queued = redis.call('EXISTS', others) == 1
if queued and place == '' then
  -- It may be that no waiter in the queue is alive.
  grant_next(value)
  queued = redis.call('EXISTS', others) == 1
  value = redis.call('GET', lock)
  -- Or that it is the next one itself: its first request has come late.
  if is_held(token, value) then return accept(value) end
end

local COUNTED = 200 -- among how many ahead of it one call counts those that wait

-- Counts waiters ahead of this one, up to `most`. A listener that no message reaches is dead.
local function count_ahead(most)
  local waiting = 0
  for _, other in ipairs(redis.call('ZRANGE', others, 0, COUNTED - 1)) do
    if waiting >= most or other == token then break end
    local entry = redis.call('HGET', waiters, other) or ''
    local until_ms, _, _, _, listens = string.match(entry, WAITER)
    local is_there = until_ms and tonumber(until_ms) > now_ms
    if is_there and listens ~= '0' then
      is_there = redis.pcall(PUBLISH[listens], channels .. id(other), 'hello') ~= 0
    end
    if is_there then waiting = waiting + 1 end
  end
  return waiting
end

-- The last ticket that was given. It never falls below those in the queue, whatever becomes of the state.
local function last_ticket()
  return tonumber(redis.call('HGET', state, 'ticket')) or tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
end

-- Makes the older waiters give up; if a freeze keeps this run out, only those that it keeps out, too.
local function supersede_older(newest)
  superseded = tonumber(newest)
  if not is_kept_out then superseded_exempt = superseded end
  set_state('superseded', newest, 'superseded_exempt', int_text(superseded_exempt), 'superseded_by', who)
  -- The same request, if it arrives once more when its run is over, must not pass for a newer one.
  post_notice('left', token, newest, A_WHILE)
end

if not queued then
  local slot = free_slot(limit, value, who)
  if slot then
    local fence = next_fence()
    add_holder(value, token, limit, slot, ttl, fence, 0, sync and 'held:' or 'held', who)
    -- Another client may have deleted one of the two sets that it stood in, and a holder isn't granted the lock once more.
    if is_exempt then redis.pcall('ZREM', others == queue and exempt or queue, token) end
    if number then set_state('number', int_text(number), 'number_by', who) end
    if supersede ~= '0' and ticket == '' then
      -- Older ones that have left the queue are not to follow it either.
      local newest = int_text(last_ticket() + 1)
      set_state('ticket', newest)
      supersede_older(newest)
    end
    -- It may never be renewed.
    index_name(math.max(IN_USE, ttl))
    return {1, fence, slot}
  end
end
if place == '' then return busy(redis.call('ZCARD', others), 0) end

-- From here on it is a waiter.
local polls = place == 'poll'
local listens = place == 'shard' and '2' or '1'
local _, _, _, since = string.match(redis.call('HGET', waiters, token) or '', WAITER)
local is_new = ticket == ''
-- One that had its place before keeps it, and its turn, also on a full server.
if not is_new then redis.call('PEXPIRE', waiters, QUEUE_TTL) end
if not score then
  local last = last_ticket()
  if is_new then ticket = int_text(last + 1) end
  -- One that comes back with an old ticket gets its old place; no new ticket is smaller than that.
  set_state('ticket', int_text(math.max(last, tonumber(ticket))))
  touch_memory()
  if number then set_state('number_waits', token) end
  redis.call('ZADD', queue, ticket, token)
  -- The newest waits behind nobody whom it makes give up.
  if is_new and most_waiting and supersede == '0' then
    local waiting = count_ahead(most_waiting)
    if waiting >= most_waiting then
      redis.call('ZREM', queue, token)
      return {5, waiting}
    end
  end
  if is_new and supersede ~= '0' then
    supersede_older(ticket)
    -- Those that this call leaves are removed when they ask, or when it is their turn.
    local older = redis.call('ZRANGE', queue, 0, REMOVED, 'WITHSCORES')
    for n = 1, #older, 2 do
      local entry = redis.call('HGET', waiters, older[n]) or ''
      if is_superseded(older[n + 1], entry) then supersede_waiter(older[n], older[n + 1], entry) end
    end
  end
  -- No run that a freeze keeps out ends a holder.
  if is_new and supersede == '2' and value and not is_kept_out then
    local is_group = SHARED_VALUES[value]
    local is_watched = is_group or string.find(redis.call('HGET', meta, value) or '', '"instance":"', 1, true)
    if is_group then
      set_state('cancelled', (last_fence or int_text(next_fence() - 1)) .. ' ' .. with_time(who))
    elseif is_watched then
      post_to_holder('cancelled', value, with_time(who), redis.call('PTTL', lock))
    end
    -- Written so that the runs that track the key check their lock.
    if is_watched then redis.call('SET', lock, value, 'KEEPTTL') end
  end
  -- A waiter that no message can reach has to poll.
  if not polls then polls = (tonumber(redis.pcall(PUBLISH[listens], channels .. id(token), 'hello')) or 0) == 0 end
end
-- Dead waiters that don't come to the head of the queue are removed by the next one alive on either side, and so
-- are those that were made to give up.
local function remove_dead(rank)
  local neighbour, its_score = unpack(redis.call('ZRANGE', queue, rank, rank, 'WITHSCORES'))
  if not neighbour then return false end
  local entry = redis.call('HGET', waiters, neighbour) or ''
  local until_ms = string.match(entry, WAITER)
  if is_superseded(its_score, entry) then
    supersede_waiter(neighbour, its_score, entry)
  elseif until_ms and tonumber(until_ms) > now_ms then
    return false
  else
    dequeue(neighbour, its_score)
  end
  return true
end
local rank, removed = redis.call('ZRANK', queue, token), 0
while removed < REMOVED and rank > 0 and remove_dead(rank - 1) do rank, removed = rank - 1, removed + 1 end
while removed < REMOVED and remove_dead(rank + 1) do removed = removed + 1 end
if is_exempt then
  redis.call('ZADD', exempt, ticket, token)
  redis.call('PEXPIRE', exempt, QUEUE_TTL)
end
local ahead = redis.call('ZRANK', others, token)
-- An entry lives for three heartbeats.
local beat = math.min(2000 + 500 * ahead, 8000 + 8 * ahead, 30000)
local entry = {int_text(now_ms + 3 * beat) .. ':' .. int_text(beat), int_text(limit), since or int_text(now_ms), polls and '0' or listens, who}
redis.call('HSET', waiters, token, table.concat(entry, ' '))
redis.call('PEXPIRE', queue, QUEUE_TTL)
redis.call('PEXPIRE', waiters, QUEUE_TTL)
index_name()
local _, more, mine = grant_next(value, token)
if mine then return accept(redis.call('GET', lock)) end
return busy(redis.call('ZRANK', others, token), polls and 1 or 0, more)

end)()
