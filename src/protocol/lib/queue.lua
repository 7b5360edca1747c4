-- The queue: handing the lock on to the next waiters.
-- @include admission
-- @include messages

local GRANT_TTL = 2000 -- how long a waiter has to confirm its grant, ms
local DELIVERED_TTL = 5000 -- the same for one that got the message: its confirmation may be delayed
local QUEUE_TTL = 100000 -- how long the queue outlives its last heartbeat, and a ticket its waiter, ms: three of the longest
local GRANTS = 100 -- how many are admitted by one call; each confirmation admits more
local DEAD = 100 -- how many waiters that are dead, or were made to give up, one call clears away
local REMOVED = 40 -- how many of them one request of a waiter removes from beside it
local HELD_FOR_EACH = 20 -- for each so long that the lock was held, its release notifies one of those behind, ms
local LONG_HOLD = 1000 -- a run that held the lock so long looks whether its grant is confirmed, before others are notified, ms
local MOST_NOTIFIED = 100 -- how many are notified at most of a grant to a waiter before them

-- Takes a waiter out of the queue.
local function remove_waiter(token)
  -- A key of another type holds no waiters; a server that takes no writes ends the script.
  local remove = type(redis.pcall('ZREM', line, token)) == 'table' and redis.call or redis.pcall
  remove('ZREM', line == queue and exempt or queue, token)
  redis.pcall('HDEL', waiters, token)
end

-- Removes a waiter that leaves without the lock. It may come back with its ticket, or with its token alone if
-- the reply with the ticket was lost.
local function dequeue(token, score, knows)
  remove_waiter(token)
  if knows ~= '1' then post_notice('left', token, int_text(tonumber(score)), A_WHILE) end
end

-- Removes a waiter that a later run has made give up. Its own first request, if that arrives late, must not
-- pass for a newer one, also where it knows its ticket. With its entry it is notified.
local function supersede_waiter(token, score, entry)
  dequeue(token, score)
  if entry then send_message(id(token), entry, 'superseded') end
end

-- Notifies the next waiters, at most `most`, so that they send a request; `me` is sending one already. A waiter
-- that hasn't sent one when a grant made now expires is suspended, and is skipped, unless the lock is frozen or thawed
-- before that.
local function notify_next(most, me)
  local next = most >= 1 and redis.pcall('ZRANGE', line, 0, math.min(most, MOST_NOTIFIED) - 1, 'WITHSCORES') or {}
  if #next == 0 then return end
  for n = 1, #next, 2 do
    if next[n] ~= me then send_message(id(next[n]), redis.pcall('HGET', waiters, next[n]), 'next') end
  end
  notified = table.concat({int_text(now_ms), next[#next], int_text(frozen)}, ' ')
  set_state('notified', notified)
end

-- Grants the lock to the first of the waiters that may be next, as long as its request is admitted. A waiter gets the lock
-- for a short time, in which it must confirm the grant, and a message with all it needs to know of its lease. A waiter
-- without a subscription is dead and is skipped, and so is one that was notified and hasn't replied. One command's end and
-- the next one's start are little more than this apart, so it does nothing that the confirmation can do. `value` is that of
-- the lock key. Returns whether any waiter got the lock, whether dead ones may be left in front of one that is alive, and
-- whether `me` got it, which needs no message. Of the waiters behind, `notify` are notified (nil: as many as may be). With
-- `soon` a waiter that others stand behind is to confirm at once, as they are notified if it doesn't.
local function grant_next(value, me, notify, soon)
  local granted, mine, cleared = 0, false, 0
  local notified_at, notified_score, notified_in = string.match(notified or '', '^(%d+) (%S+) (%d+)$')
  notified_at, notified_score = tonumber(notified_at or now_ms), tonumber(notified_score or 0)
  while cleared < DEAD do
    -- A key of another type counts as an empty queue, so that a holder can still release the lock.
    local head, score = unpack(redis.pcall('ZRANGE', line, 0, 0, 'WITHSCORES'))
    if not head then break end
    local entry = redis.pcall('HGET', waiters, head)
    if type(entry) ~= 'string' then entry = '' end
    local until_ms, seen, knows, limit, since, listens, who = string.match(entry, WAITER)
    limit = tonumber(limit)
    local slot, fence, grant_ttl = nil, nil, GRANT_TTL
    local is_alive = until_ms and tonumber(until_ms) > now_ms
    if is_alive and tonumber(notified_in) == frozen and now_ms >= notified_at + GRANT_TTL and tonumber(seen) < notified_at then
      is_alive = tonumber(score) > notified_score
    end
    local gives_up = is_superseded(score, entry)
    if until_ms and (head == me or is_alive) and not gives_up then
      slot = granted < GRANTS and free_slot(limit, value, who)
      if not slot then break end
      fence = next_fence()
      if head ~= me and listens ~= '0' then
        -- After a grant that was not confirmed the next one is shorter.
        if notify or not notified_in then grant_ttl = DELIVERED_TTL end
        local grant = table.concat({'granted', fence, slot, int_text(now_ms), grant_ttl}, ' ')
        if soon and redis.call('ZCARD', line) > 1 then grant = grant .. ' soon' end
        -- The first write comes before the message: a server that takes no writes (a replica by now, say) ends
        -- the script here, and no command starts on a grant that was never written.
        redis.call('ZREM', line, head)
        local heard = redis.pcall(PUBLISH[listens], channels .. id(head), grant)
        -- Not permitted to this user: the waiters will poll.
        if type(heard) ~= 'number' then
          redis.call('ZADD', line, score, head)
          redis.call('PEXPIRE', line, QUEUE_TTL)
          break
        end
        if heard == 0 then slot = nil end
      end
    end
    if slot then
      remove_waiter(head)
      local phase = knows == '1' and 'granted' or 'granted:' .. int_text(tonumber(score))
      value = add_holder(value, head, limit, slot, grant_ttl, fence, now_ms - tonumber(since), phase, who)
      -- In a group the lock's key doesn't name it; its number counts before it has confirmed that.
      if limit ~= 1 and string.find(who, '"order":', 1, true) then set_state('number_granted', head) end
      granted = granted + 1
      if head == me then mine = true end
      if limit == 1 then break end
    else
      if gives_up then supersede_waiter(head, score, entry) else dequeue(head, score, knows) end
      cleared = cleared + 1
    end
  end
  -- A whole group is admitted further by each confirmation.
  if cleared == DEAD then
    notify_next(MOST_NOTIFIED, me)
  elseif granted > 0 and granted < GRANTS and not mine then
    notify_next(notify or MOST_NOTIFIED, me)
  end
  return granted > 0, cleared == DEAD, mine
end
