-- promote: what all scripts but inspect begin with: holding, admission, the queue's turn, the history.
-- KEYS: 1 lock, 2 state, 3 meta, 4 holders, 5 queue, 6 waiters, 7 history, 8 index
-- ARGV: 1 name, 2 start of the waiters' channels, 3 how many holds the history keeps
-- Returns: nothing; the script that follows does
local lock, state, meta, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, history, index = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local name, channels, remembered = ARGV[1], ARGV[2], tonumber(ARGV[3])

local KEPT = 30 * 24 * 3600 * 1000 -- how long what is remembered outlives its last use, ms
local CLAIM = 2000 -- how long a granted waiter has to claim, ms
local HEARD = 5000 -- the same for one that got the message: its claim may be held up on its way
local SHARED = 1000000000 -- the limit of a shared request: none
-- What stands in the lock when it is held by a group, so that plain clients stay out.
local GROUP = {['redlock:shared'] = true, ['redlock:slots'] = true}
-- The same when nobody holds it and nobody may.
local FROZEN = 'redlock:frozen'

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local last_fence, freeze, succeeded = unpack(redis.call('HMGET', state, 'fence', 'frozen', 'succeeded'))
-- Until when nobody is let in; 0 when the lock isn't frozen.
local frozen = tonumber(string.match(freeze or '', '^%d+') or 0)
if frozen <= now then frozen = 0 end

local function digits(number) return string.format('%.0f', number) end

-- How others may call a token without learning it.
local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end

-- Makes a key live for at least so many milliseconds.
local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- Says in the index that the name is in use for at least so long.
local function list(ms)
  if tonumber(redis.call('ZSCORE', index, name) or 0) >= now + ms then return end
  if redis.call('ZADD', index, digits(now + ms), name) == 1 then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', digits(now - KEPT))
  end
  redis.call('PEXPIRE', index, digits(2 * KEPT))
end

-- Says in the index that the lock is neither held by redlock nor waited for any more; there it stays
-- for as long as its history.
local function unlist()
  if frozen > 0 or redis.call('EXISTS', queue) == 1 then return end
  local mark = redis.call('GET', lock)
  if not mark or (not GROUP[mark] and redis.call('HEXISTS', meta, mark) == 0) then
    redis.call('ZADD', index, digits(now), name)
  end
end

-- Grows with every grant, also when the state was flushed: server time in microseconds is below
-- 2^53 until 2255. The state's expiry is refreshed by who takes a ticket or the lock.
local function next_fence()
  local fence = clock[1] * 1000000 + clock[2]
  local last = tonumber(last_fence or 0)
  if fence <= last then fence = last + 1 end
  last_fence = digits(fence)
  redis.call('HSET', state, 'fence', last_fence)
  return last_fence
end

-- Where a hold stands in its entry in meta, "<fence> <since> <limit> <slot> <waited> <phase> <who>":
-- granted (and not claimed yet), held, or kept (its run is over).
local PHASE = '^(%d+ %d+ %d+ %d+ %d+) (%l+) '

-- Writes the end of a hold into the history. `how` it ended is as in the manual, `by` (JSON or '')
-- whoever ended it. The caller then removes the entry, so it is written once.
local function log(token, entry, ended, how, by)
  if string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept ') then return end
  local record = {id(token), digits(ended), how, #by, by .. entry}
  local length = redis.call('LPUSH', history, table.concat(record, ' '))
  -- Rarely, as the next holder waits for this.
  if length > remembered + remembered / 10 then redis.call('LTRIM', history, 0, remembered - 1) end
  -- Later on whoever takes the lock sees to that.
  if length == 1 then redis.call('PEXPIRE', history, KEPT) end
end

-- Somebody has taken the lock: what is remembered stays for another while. The state lives for twice
-- as long, as a success at the end of a hold counts from then.
local function keep_memory()
  redis.call('PEXPIRE', state, digits(2 * KEPT))
  redis.call('PEXPIRE', history, KEPT)
end

-- The same for a hold that ended without a word, unless it was never claimed: its lease ended at
-- this moment, or would have.
local function log_silent(token, entry, lease_end)
  local _, phase = string.match(entry or '', PHASE)
  if phase ~= 'held' then return end
  log(token, entry, math.min(lease_end, now), lease_end > now and 'lost' or 'expired', '')
end

-- What is left of holders that died, or whose lock somebody deleted. The expiry of `meta` is that of
-- the last exclusive lease, and KEPT.
local function sweep()
  local all = redis.call('HGETALL', meta)
  if #all == 0 then return end
  local lease_end = now + redis.call('PTTL', meta) - KEPT
  for n = 1, #all, 2 do
    log_silent(all[n], all[n + 1], tonumber(redis.call('ZSCORE', holders, all[n]) or lease_end))
  end
  redis.call('DEL', meta, holders)
end

-- Nobody holds the lock any more.
local function set_free()
  if frozen > 0 then
    redis.call('SET', lock, FROZEN, 'PX', digits(frozen - now))
    redis.call('DEL', meta, holders)
  else
    redis.call('DEL', lock, meta, holders)
  end
end

-- Whether there is room for one more with this limit: holders + 1 <= min(its limit, each holder's
-- limit). Returns the slot it would get (0: none, for shared), or nil. `mark` is what stands in
-- the lock.
local function room(limit, mark)
  if frozen > 0 then return nil end
  local first = limit < SHARED and 1 or 0
  if not mark or mark == FROZEN then return first end
  if not GROUP[mark] then return nil end
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', digits(now))) do
    log_silent(dead, redis.call('HGET', meta, dead), tonumber(redis.call('ZSCORE', holders, dead)))
    redis.call('ZREM', holders, dead)
    redis.call('HDEL', meta, dead)
  end
  local count = redis.call('ZCARD', holders)
  if count == 0 then
    set_free()
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

-- Makes a token a holder for so many milliseconds; room() has said that it may. How long it has
-- waited is in milliseconds, too.
local function hold(token, limit, slot, lease, fence, waited, phase, who)
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
    lengthen(holders, lease + KEPT)
  end
  local entry = {fence, digits(now), digits(limit), digits(slot), digits(waited), phase, who}
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
    local till, limit, since, hears, who = string.match(entry, '^(%d+) (%d+) (%d+) %S+ ([01]) (.*)$')
    limit = tonumber(limit)
    local slot, fence, lasting = nil, nil, CLAIM
    if till and (head == me or tonumber(till) > now) then
      slot = room(limit, mark)
      if not slot then break end
      fence = next_fence()
      if head ~= me and hears == '1' then
        lasting = HEARD
        local grant = table.concat({'granted', fence, slot, digits(now), lasting}, ' ')
        local heard = redis.pcall('PUBLISH', channels .. id(head), grant)
        -- Not permitted to this user: the waiters will look by themselves.
        if type(heard) ~= 'number' then break end
        if heard == 0 then slot = nil end
      end
    end
    redis.call('ZREM', queue, head)
    redis.call('HDEL', waiters, head)
    if slot then
      hold(head, limit, slot, lasting, fence, now - tonumber(since), 'granted', who)
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

-- Lengthens the lease of a holder, never shortens it. Returns how long it is now.
local function extend(token, mark, ttl)
  local left
  if mark == token then
    left = redis.call('PTTL', lock)
    if left < ttl then
      redis.call('PEXPIRE', lock, ttl)
      left = ttl
    end
    redis.call('PEXPIRE', meta, digits(left + KEPT))
  else
    left = tonumber(redis.call('ZSCORE', holders, token)) - now
    if left < ttl then
      redis.call('ZADD', holders, digits(now + ttl), token)
      left = ttl
    end
    if redis.call('PTTL', lock) < ttl then
      redis.call('PEXPIRE', lock, digits(ttl + ttl / 3))
    end
    lengthen(holders, left + KEPT)
    lengthen(meta, left + KEPT)
  end
  keep_memory()
  list(2 * left)
  return left
end

-- Whoever was let in has said that it knows. Returns its entry.
local function claimed(token)
  local entry = redis.call('HGET', meta, token) or ''
  local start, phase = string.match(entry, PHASE)
  if phase == 'granted' then
    entry = start .. ' held ' .. string.sub(entry, #start + 10)
    redis.call('HSET', meta, token, entry)
  end
  return entry
end

-- Leaves word for the run that holds a lock: who forced it out ('forced'), that its job has given
-- the lock back ('returned'), or who wants it to end ('cancelled'). Where none is left to read it,
-- it goes after a day.
local function leave_word(kind, token, text)
  local all = redis.call('HGETALL', state)
  for n = 1, #all, 2 do
    local written = string.match(all[n], '^%l+:%x+$') and tonumber(string.match(all[n + 1], '^%d+'))
    if written and written < now - 24 * 3600 * 1000 then redis.call('HDEL', state, all[n]) end
  end
  redis.call('HSET', state, kind .. ':' .. id(token), digits(now) .. ' ' .. text)
  redis.call('PEXPIRE', state, digits(2 * KEPT))
end

-- The word of a kind that was left for a token, or false.
local function word(kind, token)
  local said = redis.call('HGET', state, kind .. ':' .. id(token))
  return said and string.match(said, '^%d+ (.*)$')
end

-- What to tell a token that doesn't hold the lock: {0, who forced it out or nil, an entry of who
-- holds it now or nil}, or {2} when it gave the lock back itself.
local function not_held(token, mark)
  if word('returned', token) then return {2} end
  local other = false
  if type(mark) == 'string' then
    if GROUP[mark] then mark = redis.call('ZRANGE', holders, -1, -1)[1] or '' end
    other = redis.call('HGET', meta, mark)
  end
  return {0, word('forced', token), other}
end

