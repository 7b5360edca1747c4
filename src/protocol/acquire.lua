-- acquire: take the lock, confirm a grant, or join the queue; also a waiter's heartbeat.
-- ARGV[4] token
-- ARGV[5] ttl (ms)
-- ARGV[6] limit
-- ARGV[7] who: the run, its entry in JSON
-- ARGV[8] place: '' not in the queue; 'listen' woken by its own channel; 'shard' by the channel of its hash slot, in a cluster; 'poll'
-- ARGV[9] ticket ('' for a new one, or for one that was lost together with a reply)
-- ARGV[10] supersede (0: no, 1: older runs in the queue, 2: also the holders)
-- ARGV[11] number in an outside order (--seq), or ''
-- ARGV[12] once: how recent a success suffices (ms), 0, or '=' and the key of a success that suffices
-- ARGV[13] repair (1: give a lock without an expiry one; 0)
-- ARGV[14] sync (1: the grant is valid only when replicas have it, which a renewal confirms then; '' or missing otherwise)
-- ARGV[15] the most waiters that it joins the queue behind ('' or missing: any number)
-- Returns {1, fence, slot} when held; {0, server time (ms), waiters ahead, ticket, 1 if it must poll, ms left (-1: never), holders, id of one or nil, its entry or nil, what froze it or nil, 1 if it was repaired, 1 if dead waiters are left in front of it, which it clears away by asking again, who has asked that holder to end or nil} when busy; {2, by (JSON)} when superseded; {3, ms since the last success} when that is enough; {4, by (JSON)} when a person, or a newer run, doesn't want it to run any more: it releases what it has; {5, how many} when so many wait already
-- @include lock
-- @include text

local token, ttl, limit, who = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local place, ticket, supersede, number = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local once, repair, sync, most_waiting = ARGV[12], ARGV[13], (ARGV[14] or '') ~= '', tonumber(ARGV[15] or '')

-- A single function, because its local functions reach the variables above as upvalues. Looking them up once more
-- would take each function longer than its commands.
return (function()

-- @include lease
-- @include once

-- A run that ignores the freeze doesn't wait for runs that the freeze keeps out.
local is_exempt = ignores_freezes(who)
local is_kept_out = frozen > 0 and not is_exempt
local others = is_kept_out and queue or line

-- Other requests read this number in the run's entries.
if number then who = string.gsub(who, '^{', '{"order":' .. int_text(number) .. ',', 1) end

local repaired = 0

-- The token holds the lock already, because of a grant to confirm, or of a request whose reply was lost.
local function accept(value)
  extend_lease(token, value, ttl)
  local hold = read_hold(confirm(token, value, ttl, sync))
  local fence = hold.fence or next_fence()
  if not hold.fence then set_state('fence', fence) end
  return {1, fence, tonumber(hold.slot or 0)}
end

-- Builds the answer for a busy lock. `more`: dead waiters may be left in front of this run.
local function busy(ahead, polls, more)
  local value = redis.call('GET', lock)
  local holder, count, left = value, 1
  if not value or value == FROZEN then
    holder, count, left = false, 0, is_kept_out and frozen or 0
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

-- Withdraws this run, because a newer one has superseded it.
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
  -- The run that reads this answer hasn't started its command. But this request may be a late one of a run that has
  -- started it, so nothing is freed here.
  local cancelled = cancelled_by(token, redis.call('HGET', meta, token))
  if cancelled then
    -- Posted again, so that a repeated request gets the same answer when its lease is over. The PEXPIRE comes first,
    -- because a full server accepts it.
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
-- The server knows the ticket by the token, even for a while after the token has left the queue.
if place ~= '' then score = redis.call('ZSCORE', queue, token) end
if score then
  ticket = int_text(tonumber(score))
else
  -- Somebody removed it from the queue, or took its grant away before it was confirmed. Or its own run has withdrawn
  -- it, and this request was delayed.
  local removed = notice('removed', token)
  if removed then return {4, removed} end
  cancelled = notice('cancelled', token)
  if ticket == '' then
    ticket = notice('left', token) or ''
    -- Its grant has expired, and another client has taken the lock since.
    local hold = read_hold(redis.call('HGET', meta, token))
    if hold.phase == 'granted' then ticket = hold.number end
  end
end
-- Another run has a larger number in the outside order: the last holder, or a waiter, even one with an unconfirmed
-- grant. A run that has left the queue without the lock supersedes nobody.
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
-- A later run has superseded this one.
if ticket ~= '' and is_superseded(ticket, who) then return give_up(redis.call('HGET', state, 'superseded_by')) end
if cancelled then return {4, cancelled} end

local queued = redis.call('EXISTS', others) == 1
if queued and place == '' then
  -- Perhaps no waiter in the queue is alive.
  grant_next(value)
  queued = redis.call('EXISTS', others) == 1
  value = redis.call('GET', lock)
  -- Or this run is the next waiter, if its first request has come late.
  if is_held(token, value) then return accept(value) end
end

local COUNTED = 200 -- how many of the waiters ahead one call checks

-- Returns how many live waiters are ahead of this one, up to `most`. A listener that no message reaches is dead.
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

-- Returns the last ticket that was given. Never less than the tickets in the queue, even if the state was deleted.
local function last_ticket()
  return tonumber(redis.call('HGET', state, 'ticket')) or tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
end

-- Supersedes the older waiters. If a freeze keeps this run out, only the waiters that the freeze keeps out, too.
local function supersede_older(newest)
  superseded = tonumber(newest)
  if not is_kept_out then superseded_exempt = superseded end
  set_state('superseded', newest, 'superseded_exempt', int_text(superseded_exempt), 'superseded_by', who)
  -- If this request arrives again after its run has ended, it must not pass for a newer one.
  post_notice('left', token, newest, A_WHILE)
end

if not queued then
  local slot = free_slot(limit, value, who)
  if slot then
    local fence = next_fence()
    add_holder(value, token, limit, slot, ttl, fence, 0, sync and 'held:' or 'held', who)
    -- Removed here, because another client may have deleted one of its two sets, and a holder must not be granted the
    -- lock again.
    if is_exempt then redis.pcall('ZREM', others == queue and exempt or queue, token) end
    if number then set_state('number', int_text(number), 'number_by', who) end
    if supersede ~= '0' and ticket == '' then
      -- Older runs that have left the queue must not come after it either.
      local newest = int_text(last_ticket() + 1)
      set_state('ticket', newest)
      supersede_older(newest)
    end
    -- Indexed for the whole lease now, because it may never be renewed.
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
-- A waiter that already has a ticket keeps its turn, even on a full server.
if not is_new then redis.call('PEXPIRE', waiters, QUEUE_TTL) end
if not score then
  local last = last_ticket()
  if is_new then ticket = int_text(last + 1) end
  -- A waiter that comes back with an old ticket gets its old place; new tickets are always larger.
  set_state('ticket', int_text(math.max(last, tonumber(ticket))))
  touch_memory()
  if number then set_state('number_waits', token) end
  redis.call('ZADD', queue, ticket, token)
  -- Not checked for a run that supersedes the waiters ahead of it.
  if is_new and most_waiting and supersede == '0' then
    local waiting = count_ahead(most_waiting)
    if waiting >= most_waiting then
      redis.call('ZREM', queue, token)
      return {5, waiting}
    end
  end
  if is_new and supersede ~= '0' then
    supersede_older(ticket)
    -- Waiters that this call leaves are removed when they ask again, or when it is their turn.
    local older = redis.call('ZRANGE', queue, 0, REMOVED, 'WITHSCORES')
    for n = 1, #older, 2 do
      local entry = redis.call('HGET', waiters, older[n]) or ''
      if is_superseded(older[n + 1], entry) then supersede_waiter(older[n], older[n + 1], entry) end
    end
  end
  -- A run that a freeze keeps out doesn't cancel a holder.
  if is_new and supersede == '2' and value and not is_kept_out then
    local is_group = SHARED_VALUES[value]
    local is_watched = is_group or string.find(redis.call('HGET', meta, value) or '', '"instance":"', 1, true)
    if is_group then
      set_state('cancelled', (last_fence or int_text(next_fence() - 1)) .. ' ' .. with_time(who))
    elseif is_watched then
      post_to_holder('cancelled', value, with_time(who), redis.call('PTTL', lock))
    end
    -- Writes the key again, so that the runs that track it check their lock.
    if is_watched then redis.call('SET', lock, value, 'KEEPTTL') end
  end
  -- A waiter that no message can reach must poll.
  if not polls then polls = (tonumber(redis.pcall(PUBLISH[listens], channels .. id(token), 'hello')) or 0) == 0 end
end
-- Removes a waiter beside this one if it is dead or superseded. Dead waiters that never come to the head of the queue
-- are removed this way, by the next live waiter on either side.
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
