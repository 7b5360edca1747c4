-- The queue: handing the lock on to the next waiters.
-- @include admission
-- @include messages

local FIRST_BEAT = 2500 -- a waiter that has become the first in the queue asks again within this time, ms
local GRANT_TTL = 5000 -- how long a waiter has to confirm its grant, which a slow server may delay, ms
local SHORT_GRANT_TTL = 2000 -- the same for one that polls, or after a grant that nobody confirmed
local QUEUE_TTL = 100000 -- how long the queue outlives its last heartbeat, and a ticket its waiter, ms: three of the longest
local GRANTS = 100 -- how many are admitted by one call; each confirmation admits more
local DEAD = 2000 -- how many waiters that are dead, or were made to give up, one call clears away
local REMOVED = 40 -- how many of them one request of a waiter removes from beside it

-- Takes a waiter out of the queue.
local function remove_waiter(token)
  -- A key of another type holds no waiters; a server that takes no writes ends the script.
  local remove = type(redis.pcall('ZREM', line, token)) == 'table' and redis.call or redis.pcall
  remove('ZREM', line == queue and exempt or queue, token)
  redis.pcall('HDEL', waiters, token)
end

-- Removes a waiter that leaves without the lock. It may come back with its ticket, or with its token alone if
-- the reply with the ticket was lost; and its first request, if that arrives late, must not pass for a newer one.
local function dequeue(token, score)
  remove_waiter(token)
  post_notice('left', token, int_text(tonumber(score)), A_WHILE)
end

-- Removes a waiter that a later run has made give up. With its entry it is notified.
local function supersede_waiter(token, score, entry)
  dequeue(token, score)
  if entry then send_message(id(token), entry, 'superseded') end
end

-- Grants the lock to the first of the waiters that may be next, as long as its request is admitted. A waiter gets the lock
-- for a short time, in which it must confirm the grant, and a message with all it needs to know of its lease. A waiter
-- without a subscription is dead and is skipped. One command's end and the next one's start are little more than this apart,
-- so it does nothing that the confirmation can do. `value` is that of the lock key. Returns whether any waiter got the lock,
-- whether dead ones may be left in front of one that is alive, and whether `me` got it, which needs no message.
local function grant_next(value, me)
  local granted, mine, cleared = 0, false, 0
  while cleared < DEAD do
    -- A key of another type counts as an empty queue, so that a holder can still release the lock.
    local head, score = unpack(redis.pcall('ZRANGE', line, 0, 0, 'WITHSCORES'))
    if not head then break end
    local entry = redis.pcall('HGET', waiters, head)
    if type(entry) ~= 'string' then entry = '' end
    local until_ms, _, limit, since, listens, who = string.match(entry, WAITER)
    limit = tonumber(limit)
    local slot, fence = nil, nil
    local grant_ttl = (lapsed or listens == '0') and SHORT_GRANT_TTL or GRANT_TTL
    local gives_up = is_superseded(score, entry)
    if until_ms and (head == me or tonumber(until_ms) > now_ms) and not gives_up then
      slot = granted < GRANTS and free_slot(limit, value, who)
      if not slot then break end
      fence = next_fence()
      -- The first write comes before the message: a server that takes no writes (a replica by now, say) ends
      -- the script here, and no command starts on a grant that was never written.
      remove_waiter(head)
      if head ~= me and listens ~= '0' then
        local grant = table.concat({'granted', fence, slot, int_text(now_ms), grant_ttl}, ' ')
        local heard = redis.pcall(PUBLISH[listens], channels .. id(head), grant)
        -- Not permitted to this user: the waiters will poll.
        if type(heard) ~= 'number' then
          redis.call('ZADD', line, score, head)
          redis.call('HSET', waiters, head, entry)
          redis.call('PEXPIRE', line, QUEUE_TTL)
          redis.call('PEXPIRE', waiters, QUEUE_TTL)
          break
        end
        if heard == 0 then slot = nil end
      end
    end
    if slot then
      local phase = 'granted:' .. int_text(tonumber(score))
      value = add_holder(value, head, limit, slot, grant_ttl, fence, now_ms - tonumber(since), phase, who)
      -- In a group the lock's key doesn't name it; its number counts before it has confirmed that.
      if limit ~= 1 and string.find(who, '"order":', 1, true) then set_state('number_granted', head) end
      granted = granted + 1
      if head == me then mine = true end
      if limit == 1 then break end
    else
      if gives_up then supersede_waiter(head, score, entry) else dequeue(head, score) end
      cleared = cleared + 1
    end
  end
  -- A whole group is admitted further by each confirmation.
  return granted > 0, cleared == DEAD, mine
end

-- The lock has a new holder for `ttl`. The first waiter is notified if it would ask later than that lease may end; and the
-- second if it would ask later than the first one in the queue does, as the first may be suspended when it gets the lock.
local function notify_next(ttl)
  for place, token in ipairs(redis.pcall('ZRANGE', line, 0, 1)) do
    local entry = redis.pcall('HGET', waiters, token)
    local until_ms, beat = string.match(type(entry) == 'string' and entry or '', '^(%d+):(%d+) ')
    if until_ms and until_ms - 2 * beat > now_ms + (place == 1 and ttl or FIRST_BEAT) then send_message(id(token), entry, 'next') end
  end
end
