-- The queue, which hands the lock over to the next waiters.
-- @include admission
-- @include messages

local FIRST_BEAT = 2500 -- longest time until a waiter that has become the first in the queue asks again, ms
local GRANT_TTL = 5000 -- how long a waiter has to confirm its grant, even with a slow server, ms
local SHORT_GRANT_TTL = 2000 -- the same for a waiter that polls, or after an unconfirmed grant
local QUEUE_TTL = 100000 -- how long the queue outlives its last heartbeat, and a ticket its waiter, ms (three of the longest)
local GRANTS = 100 -- the most grants of one call; each confirmation grants more
local DEAD = 2000 -- the most dead or superseded waiters that one call removes
local REMOVED = 40 -- the most of these that one request of a waiter removes beside it

-- Removes a waiter from the queue.
local function remove_waiter(token)
  -- A key of another type holds no waiters; a server that takes no writes ends the script.
  local remove = type(redis.pcall('ZREM', line, token)) == 'table' and redis.call or redis.pcall
  remove('ZREM', line == queue and exempt or queue, token)
  redis.pcall('HDEL', waiters, token)
end

-- Removes a waiter that leaves without the lock. The waiter may come back with its ticket, or with its token alone if
-- the reply with the ticket was lost. Its first request must not pass for a newer one if it arrives late.
local function dequeue(token, score)
  remove_waiter(token)
  post_notice('left', token, int_text(tonumber(score)), A_WHILE)
end

-- Removes a superseded waiter, and notifies it if its entry is given.
local function supersede_waiter(token, score, entry)
  dequeue(token, score)
  if entry then send_message(id(token), entry, 'superseded') end
end

-- Grants the lock to the first waiters that may be next, as long as their requests are admitted. A waiter gets the
-- lock for a short time, in which it must confirm the grant, and a message with the data of its lease. A waiter
-- without a subscription is dead and is skipped. `value` is the lock key's value.
-- Returns whether any waiter got the lock, whether dead ones may be left at the head, and whether `me` got it, which
-- needs no message. Little more than this call separates the end of a command from the start of the next, so all that
-- the confirmation can do is left to it.
local function grant_next(value, me)
  local granted, mine, cleared = 0, false, 0
  while cleared < DEAD do
    -- A key of another type is treated as an empty queue, so that a holder can still release the lock.
    local head, score = unpack(redis.pcall('ZRANGE', line, 0, 0, 'WITHSCORES'))
    if not head then break end
    local entry = redis.pcall('HGET', waiters, head)
    if type(entry) ~= 'string' then entry = '' end
    local until_ms, _, limit, since, listens, who = string.match(entry, WAITER)
    limit = tonumber(limit)
    local slot, fence, grant_ttl = nil, nil, (lapsed or listens == '0') and SHORT_GRANT_TTL or GRANT_TTL
    local gives_up = is_superseded(score, entry)
    if until_ms and (head == me or tonumber(until_ms) > now_ms) and not gives_up then
      slot = granted < GRANTS and free_slot(limit, value, who)
      if not slot then break end
      fence = next_fence()
      -- Written before the message, because a server that takes no writes (a demoted primary, for example) ends the
      -- script here. No command may start on a grant that was never written.
      remove_waiter(head)
      if head ~= me and listens ~= '0' then
        local grant = table.concat({'granted', fence, slot, int_text(now_ms), grant_ttl}, ' ')
        local heard = redis.pcall(PUBLISH[listens], channels .. id(head), grant)
        -- This user may not publish, so the waiters poll.
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
      -- In a group the lock's key doesn't name it, but its number must be known before it confirms the grant.
      if limit ~= 1 and string.find(who, '"order":', 1, true) then set_state('number_granted', head) end
      granted = granted + 1
      if head == me then mine = true end
      if limit == 1 then break end
    else
      if gives_up then supersede_waiter(head, score, entry) else dequeue(head, score) end
      cleared = cleared + 1
    end
  end
  -- If this call leaves dead waiters in front, the newest one that listens asks again, and removes more.
  for rank = -1, cleared == DEAD and granted == 0 and -DEAD or 0, -1 do
    local newest = redis.pcall('ZRANGE', line, rank, rank)[1]
    if not newest or send_message(id(newest), redis.pcall('HGET', waiters, newest), 'kept') ~= 0 then break end
  end
  -- Each confirmation admits further members of a large group.
  return granted > 0, cleared == DEAD, mine
end

-- Notifies waiters after the lock got a new holder for `ttl`. The first waiter, if its next request would come after
-- the end of that lease. The second, if its next request would come after the first one's, because the first may be
-- suspended when it gets the lock.
local function notify_next(ttl)
  for place, token in ipairs(redis.pcall('ZRANGE', line, 0, 1)) do
    local entry = redis.pcall('HGET', waiters, token)
    local until_ms, beat = string.match(type(entry) == 'string' and entry or '', '^(%d+):(%d+) ')
    if until_ms and until_ms - 2 * beat > now_ms + (place == 1 and ttl or FIRST_BEAT) then send_message(id(token), entry, 'next') end
  end
end
