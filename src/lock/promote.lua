-- promote: what acquire, renew, release and force begin with: holding, admission, the queue's turn.
-- KEYS: 1 lock, 2 state, 3 meta, 4 holders, 5 queue, 6 waiters, 7 index
-- ARGV: 1 name, 2 start of the waiters' channels
-- Returns: nothing; the script that follows does
local lock, state, meta, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, index = KEYS[5], KEYS[6], KEYS[7]
local name, channels = ARGV[1], ARGV[2]

local KEPT = 30 * 24 * 3600 * 1000 -- how long the state outlives its last use, ms
local CLAIM = 2000 -- how long a granted waiter has to claim, ms
local SHARED = 1000000000 -- the limit of a shared request: none
-- What stands in the lock when it is held by a group, so that plain clients stay out.
local GROUP = {['redlock:shared'] = true, ['redlock:slots'] = true}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function digits(number) return string.format('%.0f', number) end

-- How others may call a token without learning it.
local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end

-- Makes a key live for at least so many milliseconds.
local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- Keeps the name in the index of names in use for at least so long.
local function list(ms)
  if tonumber(redis.call('ZSCORE', index, name) or 0) < now + ms then
    redis.call('ZADD', index, digits(now + ms), name)
  end
  lengthen(index, ms)
end

-- Takes the name out of the index when the lock is neither held by redlock nor waited for.
local function unlist()
  if redis.call('EXISTS', queue) == 1 then return end
  local mark = redis.call('GET', lock)
  if not mark or (not GROUP[mark] and redis.call('HEXISTS', meta, mark) == 0) then
    redis.call('ZREM', index, name)
  end
end

-- Grows with every grant, also when the state was flushed: server time in microseconds is below
-- 2^53 until 2255. The state's expiry is refreshed by who takes a ticket or the lock.
local function next_fence()
  local fence = clock[1] * 1000000 + clock[2]
  local last = tonumber(redis.call('HGET', state, 'fence') or 0)
  if fence <= last then fence = last + 1 end
  fence = digits(fence)
  redis.call('HSET', state, 'fence', fence)
  return fence
end

-- Whether there is room for one more with this limit: holders + 1 <= min(its limit, each holder's
-- limit). Returns the slot it would get (0: none, for shared), or nil. `mark` is what stands in
-- the lock.
local function room(limit, mark)
  local first = limit < SHARED and 1 or 0
  if not mark then return first end
  if not GROUP[mark] then return nil end
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', digits(now))) do
    redis.call('ZREM', holders, dead)
    redis.call('HDEL', meta, dead)
  end
  local count = redis.call('ZCARD', holders)
  if count == 0 then
    redis.call('DEL', lock)
    return first
  end
  if count + 1 > limit then return nil end
  if first == 0 and mark == 'redlock:shared' then return 0 end
  local taken = {}
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local entry = redis.call('HGET', meta, token) or ''
    local theirs, slot = string.match(entry, '^%d+ %d+ (%d+) (%d+) ')
    if count + 1 > tonumber(theirs or 1) then return nil end
    taken[tonumber(slot)] = true
  end
  local slot = first
  while slot > 0 and taken[slot] do slot = slot + 1 end
  return slot
end

-- Makes a token a holder for so many milliseconds; room() has said that it may.
local function hold(token, limit, slot, lease, fence, who)
  if limit == 1 then
    redis.call('SET', lock, token, 'PX', lease)
  else
    local mark = limit < SHARED and 'redlock:slots' or 'redlock:shared'
    -- A third longer than any member's lease, so that it isn't written with each renewal of each
    -- member: all of them watch this key.
    local long = lease + lease / 3
    local there = redis.call('GET', lock)
    if GROUP[there] then
      lengthen(lock, long)
      if limit < SHARED and there ~= mark then redis.call('SET', lock, mark, 'KEEPTTL') end
    else
      redis.call('SET', lock, mark, 'PX', digits(long))
    end
    redis.call('ZADD', holders, digits(now + lease), token)
    lengthen(holders, 2 * lease)
  end
  local entry = {fence, digits(now), digits(limit), digits(slot), who}
  redis.call('HSET', meta, token, table.concat(entry, ' '))
end

-- Lets those at the head of the queue in, as long as there is room: each gets the lock for a short
-- time in which it has to claim it, and a message with all it needs to know of its lease; who can't
-- hear it is gone and is passed over. Between one command's end and the next one's start stands
-- little but this, so it does nothing that the claim can do. `mark` is what stands in the lock.
-- Returns whether anybody was let in, and whether `me` was, who needs no message. How long `meta`
-- is kept is for the caller to say.
local function promote(mark, me)
  local any, mine = false, false
  for _ = 1, 1000 do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then break end
    local entry = redis.call('HGET', waiters, head) or ''
    local till, limit, hears, who = string.match(entry, '^(%d+) (%d+) %d+ %S+ ([01]) (.*)$')
    limit = tonumber(limit)
    local slot, fence = nil, nil
    if till and (head == me or tonumber(till) > now) then
      slot = room(limit, mark)
      if not slot then break end
      fence = next_fence()
      if head ~= me and hears == '1' then
        local grant = table.concat({'granted', fence, slot, digits(now), CLAIM}, ' ')
        local heard = redis.pcall('PUBLISH', channels .. id(head), grant)
        -- Not permitted to this user: the waiters will look by themselves.
        if type(heard) ~= 'number' then break end
        if heard == 0 then slot = nil end
      end
    end
    redis.call('ZREM', queue, head)
    redis.call('HDEL', waiters, head)
    if slot then
      hold(head, limit, slot, CLAIM, fence, who)
      any = true
      if head == me then mine = true end
      if limit == 1 then break end
      mark = redis.call('GET', lock)
    end
  end
  return any, mine
end

-- Whether the token holds the lock now. `mark` is what stands in the lock.
local function is_held(token, mark)
  if mark == token then return true end
  if type(mark) ~= 'string' or not GROUP[mark] then return false end
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now
end

-- Lengthens the lease of a holder, never shortens it.
local function extend(token, mark, ttl)
  if mark == token then
    lengthen(lock, ttl)
  else
    if tonumber(redis.call('ZSCORE', holders, token)) < now + ttl then
      redis.call('ZADD', holders, digits(now + ttl), token)
    end
    if redis.call('PTTL', lock) < ttl then
      redis.call('PEXPIRE', lock, digits(ttl + ttl / 3))
    end
    lengthen(holders, 2 * ttl)
  end
  lengthen(meta, 2 * ttl)
  lengthen(state, KEPT / 2)
  list(2 * ttl)
end

-- What to tell a token that doesn't hold the lock: {0, who forced it out or nil, an entry of who
-- holds it now or nil}, or {2} when it gave the lock back itself.
local function not_held(token, mark)
  if redis.call('HGET', state, 'returned:' .. id(token)) then return {2} end
  local by = redis.call('HGET', state, 'forced:' .. id(token))
  local other = false
  if type(mark) == 'string' then
    if GROUP[mark] then mark = redis.call('ZRANGE', holders, -1, -1)[1] or '' end
    other = redis.call('HGET', meta, mark)
  end
  return {0, by, other}
end

