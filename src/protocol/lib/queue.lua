-- The queue: handing the lock on to the next waiters.
-- @include admission
-- @include messages

local GRANT_TTL = 2000 -- how long a waiter has to confirm its grant, ms
local DELIVERED_TTL = 5000 -- the same for one that got the message: its confirmation may be delayed
local QUEUE_TTL = 100000 -- how long the queue outlives its last heartbeat, and a ticket its waiter, ms: three of the longest
local GRANTS = 100 -- how many are admitted by one call; each confirmation admits more
local DEAD = 100 -- how many waiters that are dead, or were made to give up, one call clears away
local REMOVED = 40 -- how many of them one request of a waiter removes from beside it
local KEPT_OUT = 200 -- behind how many waiters that a freeze keeps out one that ignores it is found at once
local HELD_FOR_EACH = 20 -- for each so long that the lock was held, its release notifies one of those behind, ms
local LONG_HOLD = 1000 -- a run that held the lock so long looks whether its grant is confirmed, before others are notified, ms
local MOST_NOTIFIED = 100 -- how many are notified at most of a grant to a waiter before them

-- Removes a waiter that leaves without the lock. It may come back with its ticket, or with its token alone if
-- the reply with the ticket was lost.
local function dequeue(token, score, knows)
  redis.call('ZREM', queue, token)
  redis.pcall('HDEL', waiters, token)
  if knows ~= '1' then post_notice('left', token, int_text(tonumber(score)), A_WHILE) end
end

-- Removes a waiter that a later run has made give up. Its own first request, if that arrives late, must not
-- pass for a newer one, also where it knows its ticket. With its entry it is notified.
local function supersede_waiter(token, score, entry)
  redis.call('ZREM', queue, token)
  redis.pcall('HDEL', waiters, token)
  post_notice('left', token, int_text(tonumber(score)), A_WHILE)
  if entry then send_message(id(token), entry, 'superseded') end
end

-- Notifies the next waiters, at most `most`, so that they send a request; `me` is sending one already. A waiter
-- that hasn't sent one when a grant made now expires is suspended, and is skipped.
local function notify_next(most, me)
  -- In a freeze any of them may be the next.
  if frozen > 0 then most = most >= 1 and MOST_NOTIFIED or 0 end
  local next = most >= 1 and redis.pcall('ZRANGE', queue, 0, math.min(most, MOST_NOTIFIED) - 1, 'WITHSCORES') or {}
  if #next == 0 then return end
  for n = 1, #next, 2 do
    if next[n] ~= me then send_message(id(next[n]), redis.pcall('HGET', waiters, next[n]), 'next') end
  end
  notified = int_text(now_ms) .. ' ' .. next[#next]
  set_state('notified', notified)
end

-- Grants the lock to the head of the queue, as long as its request is admitted; in a freeze, to the first waiters that
-- ignore it. A waiter gets the lock for a short time, in which it has to confirm the grant, and a message with all it
-- needs to know of its lease. A waiter without a subscription is dead and is skipped, and so is one that was notified and
-- hasn't replied. One command's end and the next one's start are little more than this apart, so it does nothing that the
-- confirmation can do. `value` is that of the lock key. Returns whether any waiter got the lock, whether dead ones may be
-- left in front of one that is alive, whether `me` got it, which needs no message, and whether a waiter is left that no
-- freeze keeps out. Of the waiters behind, `notify` are notified (nil: as many as may be). With `soon` a waiter that others
-- stand behind is to confirm at once, as they are notified if it doesn't.
local function grant_next(value, me, notify, soon)
  local granted, mine, cleared, kept_out, is_blocked = 0, false, 0, 0, false
  local notified_at, notified_score = string.match(notified or '', '^(%d+) (%S+)$')
  if notified_at then notified_at, notified_score = tonumber(notified_at), tonumber(notified_score) end
  while cleared < DEAD and kept_out <= KEPT_OUT do
    local rank = kept_out
    if rank == KEPT_OUT then rank = me and redis.call('ZRANK', queue, me) or -1 end
    -- A key of another type counts as an empty queue, so that a holder can still release the lock.
    local head, score = unpack(rank >= 0 and redis.pcall('ZRANGE', queue, rank, rank, 'WITHSCORES') or {})
    if not head then break end
    local entry = redis.pcall('HGET', waiters, head)
    if type(entry) ~= 'string' then entry = '' end
    local until_ms, seen, knows, limit, since, listens, who = string.match(entry, WAITER)
    limit = tonumber(limit)
    local slot, fence, grant_ttl, stays = nil, nil, GRANT_TTL, false
    local is_alive = until_ms and tonumber(until_ms) > now_ms
    if is_alive and notified_at and now_ms >= notified_at + GRANT_TTL and tonumber(seen) < notified_at then
      is_alive = tonumber(score) > notified_score
    end
    local gives_up = tonumber(score) < superseded
    if until_ms and (head == me or is_alive) and not gives_up and frozen > 0 and not ignores_freeze(who) then
      kept_out, stays = kept_out + 1, true
    elseif until_ms and (head == me or is_alive) and not gives_up then
      slot = granted < GRANTS and free_slot(limit, value, who)
      if not slot then
        is_blocked = true
        break
      end
      fence = next_fence()
      if head ~= me and listens ~= '0' then
        -- After a grant that was not confirmed the next one is shorter.
        if notify or not notified_at then grant_ttl = DELIVERED_TTL end
        local grant = table.concat({'granted', fence, slot, int_text(now_ms), grant_ttl}, ' ')
        if soon and redis.call('ZCARD', queue) > 1 then grant = grant .. ' soon' end
        -- The first write comes before the message: a server that takes no writes (a replica by now, say) ends
        -- the script here, and no command starts on a grant that was never written.
        redis.call('ZREM', queue, head)
        local heard = redis.pcall(PUBLISH[listens], channels .. id(head), grant)
        -- Not permitted to this user: the waiters will poll.
        if type(heard) ~= 'number' then
          redis.call('ZADD', queue, score, head)
          redis.call('PEXPIRE', queue, QUEUE_TTL)
          is_blocked = true
          break
        end
        if heard == 0 then slot = nil end
      end
    end
    if slot then
      redis.call('ZREM', queue, head)
      redis.call('HDEL', waiters, head)
      local phase = 'granted'
      if knows ~= '1' then phase = 'granted:' .. int_text(tonumber(score)) end
      value = add_holder(value, head, limit, slot, grant_ttl, fence, now_ms - tonumber(since), phase, who)
      -- In a group the lock's key doesn't name it; its number counts before it has confirmed that.
      if limit ~= 1 and string.find(who, '"order":', 1, true) then set_state('number_granted', head) end
      granted = granted + 1
      if head == me then mine = true end
      if limit == 1 then break end
    elseif not stays then
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
  return granted > 0, cleared == DEAD, mine, is_blocked
end
