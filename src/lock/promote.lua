-- promote: what all scripts but inspect begin with: holding, admission, the queue's turn, the history.
-- KEYS: 1 lock, 2 state, 3 meta, 4 holders, 5 queue, 6 waiters, 7 history, 8 index, 9 slots
-- ARGV: 1 name, 2 start of the waiters' channels, 3 how many holds the history keeps; 4 to 14 those of acquire and release, in the usual case
-- Returns: nothing; the script that follows does
--
-- A full server refuses a script whose first write needs memory, and lets all its writes through after one
-- that needs none (DEL, HDEL, ZREM, PEXPIRE). So what frees, extends or hands on begins with one of
-- these; what takes a lock or a new place in the queue doesn't, and is refused.
local lock, state, meta, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, history, index, slots = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local name, channels, remembered = ARGV[1], ARGV[2], tonumber(ARGV[3])

local KEPT = 30 * 24 * 3600 * 1000 -- how long what is remembered outlives its last use, ms
local CLAIM = 2000 -- how long a granted waiter has to claim, ms
local HEARD = 5000 -- the same for one that got the message: its claim may be held up on its way
local FIRST_BEAT = 2500 -- the longest time after which one that has become the first in the queue looks, ms
local SHARED = 1000000000 -- the limit of a shared request: none
local LIMITS = 2 ^ 40 -- what is added to a limit in `slots`, so that limits come after slots
local ROUND = 2 ^ 42 -- what one step of priority is worth in the queue: more than any ticket
local GRANTS = 100 -- how many are let in by one call; each claim goes on with it
local DEAD = 10000 -- how many dead waiters one call clears away, in some 50 ms
local TOLD = 100 -- how many hear at most that a grant was made to one before them
local WORDS = 1000 -- how many notices for holders are kept
-- What stands in the lock when it is held by a group, so that plain clients stay out.
local GROUP = {['redlock:shared'] = true, ['redlock:slots'] = true}
-- The same when nobody holds it and nobody may.
local FROZEN = 'redlock:frozen'

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local last_fence, freeze, succeeded, told = unpack(redis.call('HMGET', state, 'fence', 'frozen', 'succeeded', 'told'))
-- Until when nobody is let in; 0 when the lock isn't frozen.
local frozen = tonumber(string.match(freeze or '', '^%d+') or 0)
if frozen <= now then frozen = 0 end

-- The usual case of acquire and release comes before anything else is defined, which takes longer than its
-- commands: an exclusive lock that nobody waits for and of which nothing is left over. It does just what the
-- scripts would do.
if #ARGV == 15 and ARGV[6] == '1' and ARGV[8] == '' and ARGV[12] == '0' and ARGV[13] == '' and ARGV[14] == '0'
  and frozen == 0 and redis.call('EXISTS', lock, meta, holders, slots, queue) == 0 then
  local token, ttl, who = ARGV[4], tonumber(ARGV[5]), ARGV[7]
  local at, memory = string.format('%.0f', now), string.format('%.0f', 2 * KEPT)
  local fence = string.format('%.0f', math.max(clock[1] * 1000000 + clock[2], tonumber(last_fence or 0) + 1))
  redis.call('HSET', state, 'fence', fence)
  redis.call('PEXPIRE', state, memory)
  redis.call('SET', lock, token, 'PX', ttl)
  redis.call('HSET', meta, token, table.concat({fence, at, '1 1 0 held', who}, ' '))
  redis.call('PEXPIRE', meta, string.format('%.0f', ttl + KEPT))
  redis.call('PEXPIRE', history, KEPT)
  if (tonumber(redis.pcall('ZSCORE', index, name) or 0) or 0) < now + 2 * ttl then
    if redis.pcall('ZADD', index, string.format('%.0f', now + 2 * ttl), name) == 1 then
      redis.call('ZREMRANGEBYSCORE', index, '-inf', string.format('%.0f', now - KEPT))
    end
    redis.call('PEXPIRE', index, memory)
  end
  return {1, fence, 1, succeeded and math.max(0, now - tonumber(succeeded)) or -1}
end
if #ARGV == 7 and ARGV[5] == '0' and ARGV[7] == '0' and frozen == 0 and last_fence
  and redis.pcall('GET', lock) == ARGV[4] and redis.call('EXISTS', holders, slots, queue) == 0 then
  local token, how = ARGV[4], ARGV[6]
  local entry = redis.pcall('HGET', meta, token)
  if type(entry) == 'string' and string.match(entry, '^%d+ %d+ 1 1 %d+ held ') and string.match(how, '^status:') then
    redis.call('DEL', lock, meta)
    local at = string.format('%.0f', now)
    local id = string.sub(redis.sha1hex(token), 1, 12)
    local record = table.concat({id, at, how, '0', entry}, ' ')
    local length = tonumber(redis.pcall('LPUSH', history, record)) or 0
    if length > remembered + remembered / 10 then redis.call('LTRIM', history, 0, remembered - 1) end
    if length == 1 then redis.call('PEXPIRE', history, KEPT) end
    if how == 'status:0' then redis.call('HSET', state, 'succeeded', at) end
    if redis.pcall('ZADD', index, at, name) == 1 then
      redis.call('PEXPIRE', index, string.format('%.0f', 2 * KEPT))
    end
    return {1}
  end
end

-- All that follows, with the script itself, is one function, which scripts.rs closes: its functions get at
-- what stands above through it, and not each by a search of its own, which took a short script more time
-- than its commands.
return (function()

local function digits(number) return string.format('%.0f', number) end

-- How others may call a token without learning it.
local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end

-- Makes a key live for at least so many milliseconds.
local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- Writes fields of the state. Its expiry is refreshed whenever a ticket or the lock is taken, so it is
-- missing only where somebody has deleted the state meanwhile.
local function set_state(...)
  redis.call('HSET', state, ...)
  if not last_fence then redis.call('PEXPIRE', state, digits(2 * KEPT)) end
end

-- Says in the index that the name is in use for at least so long. The index and the history are no part
-- of the lock, which doesn't depend on what others have put there.
local function list(ms)
  local till = tonumber(redis.pcall('ZSCORE', index, name) or 0) or 0
  if till >= now + ms then return end
  if redis.pcall('ZADD', index, digits(now + ms), name) == 1 then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', digits(now - KEPT))
  end
  redis.call('PEXPIRE', index, digits(2 * KEPT))
end

-- Says in the index that the lock is neither held by redlock nor waited for any more; there it stays
-- for as long as its history. The caller may know that the lock is `free`.
local function unlist(free)
  if frozen > 0 or redis.call('EXISTS', queue) == 1 then return end
  local mark = not free and redis.call('GET', lock)
  if not mark or (not GROUP[mark] and redis.call('HEXISTS', meta, mark) == 0) then
    if redis.pcall('ZADD', index, digits(now), name) == 1 then
      redis.call('PEXPIRE', index, digits(2 * KEPT))
    end
  end
end

-- Grows with every grant, also when the state was flushed: server time in microseconds is below
-- 2^53 until 2255. That clock can be set back, too; then the entries of those who hold the lock still
-- know. It counts once it is written, with the hold.
local function next_fence()
  local fence = clock[1] * 1000000 + clock[2]
  local last = tonumber(last_fence or 0)
  for _, entry in ipairs(last_fence and {} or redis.pcall('HVALS', meta)) do
    last = math.max(last, tonumber(string.match(entry, '^%d+') or 0))
  end
  if fence <= last then fence = last + 1 end
  return digits(fence)
end

-- Where a hold stands in its entry in meta, "<fence> <since> <limit> <slot> <waited> <phase> <who>":
-- granted (and not claimed yet), held, or kept (its run is over). The ticket of one that may not know
-- it yet stands with its grant: granted:<ticket>.
local PHASE = '^(%d+ %d+ %d+ %d+ %d+) (%l+):?(%d*) '

-- The word of a kind that was left for a token, or false.
local function word(kind, token)
  local said = redis.call('HGET', state, kind .. ':' .. id(token))
  return said and string.match(said, '^%d+ (.*)$')
end

-- Leaves word for the run that holds a lock: who forced it out ('forced'), that its job has given
-- the lock back ('returned'), who wants it to end ('cancelled'), or for how long its job has extended
-- the lock ('extended'); or for one that has left the queue and may not know its ticket: that ('left').
-- The last ones are kept, also where none is left to read them.
local function leave_word(kind, token, text)
  local field = kind .. ':' .. id(token)
  if redis.call('HEXISTS', state, field) == 0 then
    local count = tonumber(redis.call('HGET', state, 'words') or 0) + 1
    local place = 'words:' .. count % WORDS
    local oldest = redis.call('HGET', state, place)
    if oldest then redis.call('HDEL', state, oldest) end
    redis.call('HSET', state, 'words', digits(count), place, field)
  end
  redis.call('HSET', state, field, digits(now) .. ' ' .. text)
  redis.call('PEXPIRE', state, digits(2 * KEPT))
end

-- A grant was taken away: that it is claimed may be under way, by its token alone.
local function note_ticket(token, entry)
  local _, _, ticket = string.match(entry or '', PHASE)
  if ticket and ticket ~= '' then leave_word('left', token, ticket) end
end

-- Writes the end of a hold into the history. `how` it ended is as in the manual, `by` (JSON or '')
-- whoever ended it. The caller also removes the entry, so it is written once.
local function log(token, entry, ended, how, by)
  if string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept ') then return end
  local record = {id(token), digits(ended), how, #by, by .. entry}
  local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
  -- Rarely, as the next holder waits for this.
  if length > remembered + remembered / 10 then redis.call('LTRIM', history, 0, remembered - 1) end
  -- Later on the expiry is refreshed whenever the lock is taken.
  if length == 1 then redis.call('PEXPIRE', history, KEPT) end
end

-- Somebody has taken the lock: what is remembered stays for another while. The state lives for twice
-- as long, as a success at the end of a hold counts from then.
local function keep_memory()
  redis.call('PEXPIRE', state, digits(2 * KEPT))
  redis.call('PEXPIRE', history, KEPT)
end

-- The same for a hold that ended without a word, unless it was never claimed or its run is over. Its lease
-- ended at this moment, or would have: then nobody knows when the lock was taken away, but now it is seen.
local function log_silent(token, entry, lease_end)
  local _, phase = string.match(entry or '', PHASE)
  note_ticket(token, entry)
  if phase ~= 'held' then return end
  log(token, entry, math.min(lease_end, now), lease_end > now and 'lost' or 'expired', '')
end

-- Takes a member out of its group.
local function remove(token)
  redis.call('ZREM', holders, token)
  redis.pcall('ZREM', slots, 'slot ' .. token, 'limit ' .. token)
  redis.pcall('HDEL', meta, token)
end

-- Without the lock no holder counts: removes what is left of holders that died, or whose lock somebody
-- deleted. The expiry of `meta` is that of the last exclusive lease, and KEPT. The token `mine` speaks for
-- itself.
local function sweep(mine)
  if redis.call('EXISTS', meta, holders, slots) == 0 then return end
  -- Keys of another type are cleared away, too.
  local all = redis.pcall('HGETALL', meta)
  local ends = now + redis.call('PTTL', meta) - KEPT
  local left = {}
  for n = 1, #all, 2 do
    left[n] = tonumber(redis.pcall('ZSCORE', holders, all[n])) or ends
  end
  redis.call('DEL', meta, holders, slots)
  for n = 1, #all, 2 do
    if all[n] ~= mine then log_silent(all[n], all[n + 1], left[n]) end
  end
end

-- Nobody holds the lock any more.
local function set_free()
  redis.call('DEL', lock, meta, holders, slots)
  if frozen > 0 then redis.call('SET', lock, FROZEN, 'PX', digits(frozen - now)) end
end

-- Notes the slots down anew, where somebody has deleted them. Returns whether each member is known.
local function find_slots()
  local all = redis.call('HGETALL', meta)
  local known = 0
  for n = 1, #all, 2 do
    local limit, slot = string.match(all[n + 1], '^%d+ %d+ (%d+) (%d+) ')
    if limit and redis.call('ZSCORE', holders, all[n]) then
      known = known + 1
      if tonumber(limit) < SHARED then
        redis.call('ZADD', slots, slot, 'slot ' .. all[n], digits(LIMITS + limit), 'limit ' .. all[n])
      end
    end
  end
  redis.call('PEXPIRE', slots, KEPT)
  return known == redis.call('ZCARD', holders)
end

-- Members have left the group. Returns what stands in the lock now.
local function regroup(mark)
  if redis.call('EXISTS', holders) == 0 then
    set_free()
    return frozen > 0 and FROZEN
  end
  if mark == 'redlock:slots' and redis.call('EXISTS', slots) == 0 and find_slots() then
    if redis.call('EXISTS', slots) == 0 then
      mark = 'redlock:shared'
      redis.call('SET', lock, mark, 'KEEPTTL')
    end
  end
  return mark
end

-- What stands in the lock; an error when it is no string. Every script that changes anything begins
-- with this: holders that don't count any more are gone then, so that nothing brings them back. The token
-- `mine` speaks for itself.
local function look(mine)
  local mark = redis.pcall('GET', lock)
  if not mark then
    sweep(mine)
  elseif type(mark) == 'string' and GROUP[mark] then
    local dead = redis.call('ZRANGEBYSCORE', holders, '-inf', digits(now), 'LIMIT', 0, 1000)
    for _, token in ipairs(dead) do
      local entry, lease_end = redis.call('HGET', meta, token), tonumber(redis.call('ZSCORE', holders, token))
      remove(token)
      if token ~= mine then log_silent(token, entry, lease_end) end
    end
    if #dead > 0 or redis.call('EXISTS', holders) == 0 then mark = regroup(mark) end
  end
  return mark
end

-- Whether there is room for one more with this limit: holders + 1 <= min(its limit, each holder's
-- limit). Returns the slot it would get (0: none, for shared), or nil. `mark` is what stands in
-- the lock, as look() gives it.
local function room(limit, mark)
  if frozen > 0 then return nil end
  local first = limit < SHARED and 1 or 0
  if not mark or mark == FROZEN then return first end
  if not GROUP[mark] then return nil end
  local count = redis.call('ZCARD', holders)
  if count + 1 > limit then return nil end
  -- None of them has a limit, nor a slot.
  if mark == 'redlock:shared' then return first end
  if redis.call('EXISTS', slots) == 0 and not find_slots() then return nil end
  -- First come the slots in use, and then as many limits.
  local used = redis.call('ZCARD', slots) / 2
  local smallest = redis.call('ZRANGE', slots, used, used, 'WITHSCORES')[2]
  if smallest and count + 1 > smallest - LIMITS then return nil end
  -- As long as none is free below it, the slot after so many others is one more.
  local low, high = 0, used
  while low < high do
    local others = math.floor((low + high) / 2)
    local slot = tonumber(redis.call('ZRANGE', slots, others, others, 'WITHSCORES')[2])
    if slot > others + 1 then high = others else low = others + 1 end
  end
  return first * (low + 1)
end

-- Makes a token a holder for so many milliseconds; room() has said that it may. How long it has
-- waited is in milliseconds, too; `mark` is what stands in the lock. Returns what stands in the lock now.
local function hold(mark, token, limit, slot, lease, fence, waited, phase, who)
  set_state('fence', fence)
  last_fence = fence
  if limit == 1 then
    mark = token
    redis.call('SET', lock, token, 'PX', lease)
  else
    redis.call('ZADD', holders, digits(now + lease), token)
    lengthen(holders, lease + KEPT)
    local ours = limit < SHARED and 'redlock:slots' or 'redlock:shared'
    -- All members watch this key, so it is written as rarely as may be: it gets a third more than a
    -- member's lease, and another member writes it only when its own would end later.
    if not mark or not GROUP[mark] then
      redis.call('SET', lock, ours, 'PX', digits(lease + lease / 3))
      mark = ours
    else
      if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, digits(lease + lease / 3)) end
      if limit < SHARED and mark ~= ours then
        redis.call('SET', lock, ours, 'KEEPTTL')
        mark = ours
      end
    end
    if limit < SHARED then
      redis.call('ZADD', slots, slot, 'slot ' .. token, digits(LIMITS + limit), 'limit ' .. token)
      lengthen(slots, lease + KEPT)
    end
  end
  local since = math.max(0, waited)
  local entry = {fence, digits(now), digits(limit), digits(slot), digits(since), phase, who}
  redis.call('HSET', meta, token, table.concat(entry, ' '))
  if limit == 1 then
    redis.call('PEXPIRE', meta, digits(lease + KEPT))
  else
    lengthen(meta, lease + KEPT)
  end
  return mark
end

-- The number of a waiter, by its place in the queue: its priority doesn't matter.
local function ticket_of(score)
  return math.abs((score + ROUND / 2) % ROUND - ROUND / 2)
end

-- What stands in the entry of one that waits, "<dies at>:<seen>:<knows its ticket> <limit> <since> <priority>
-- <hears> <who>".
local WAITER = '^(%d+):(%d+):([01]) (%d+) (%d+) %S+ ([01]) (.*)$'

-- One leaves the queue without the lock. It comes back with its ticket, or by its token alone where the
-- reply that said it may have been lost.
local function dequeue(token, score, knows)
  redis.call('ZREM', queue, token)
  redis.pcall('HDEL', waiters, token)
  if knows ~= '1' then leave_word('left', token, digits(ticket_of(tonumber(score)))) end
end

-- Has so many of those who are next in the queue look, but for `me`, who does so already: one that doesn't
-- until a grant made now has run out stands still, and isn't waited for.
local function tell(most, me)
  local next = most >= 1 and redis.call('ZRANGE', queue, 0, math.min(most, TOLD) - 1, 'WITHSCORES') or {}
  if #next == 0 then return end
  for n = 1, #next, 2 do
    if next[n] ~= me then redis.pcall('PUBLISH', channels .. id(next[n]), 'next') end
  end
  told = digits(now) .. ' ' .. next[#next]
  set_state('told', told)
end

-- Lets those at the head of the queue in, as long as there is room: each gets the lock for a short
-- time in which it has to claim it, and a message with all it needs to know of its lease; who can't
-- hear it is gone and is passed over, and so is one that was told to look and hasn't. Between one
-- command's end and the next one's start stands little but this, so it does nothing that the claim can
-- do. `mark` is what stands in the lock. Returns whether anybody was let in, and whether `me` was, who
-- needs no message. Of those behind, `tells` hear of it (all, where that isn't said).
local function promote(mark, me, tells)
  local granted, mine, cleared = 0, false, 0
  local told_at, told_score = string.match(told or '', '^(%d+) (%S+)$')
  if told_at then told_at, told_score = tonumber(told_at), tonumber(told_score) end
  while cleared < DEAD do
    -- A queue of another type is none, so that it keeps nobody from giving the lock back.
    local head, score = unpack(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES'))
    if not head then break end
    local entry = redis.pcall('HGET', waiters, head)
    if type(entry) ~= 'string' then entry = '' end
    local till, seen, knows, limit, since, hears, who = string.match(entry, WAITER)
    limit = tonumber(limit)
    local slot, fence, lasting = nil, nil, CLAIM
    local lives = till and tonumber(till) > now
    if lives and told_at and now >= told_at + CLAIM and tonumber(seen) < told_at then
      lives = tonumber(score) > told_score
    end
    if till and (head == me or lives) then
      slot = granted < GRANTS and room(limit, mark)
      if not slot then break end
      fence = next_fence()
      if head ~= me and hears == '1' then
        -- After a grant that nobody has claimed the next one is shorter.
        if tells or not told_at then lasting = HEARD end
        local grant = table.concat({'granted', fence, slot, digits(now), lasting}, ' ')
        local heard = redis.pcall('PUBLISH', channels .. id(head), grant)
        -- Not permitted to this user: the waiters will look by themselves.
        if type(heard) ~= 'number' then break end
        if heard == 0 then slot = nil end
      end
    end
    if slot then
      redis.call('ZREM', queue, head)
      redis.call('HDEL', waiters, head)
      local phase = 'granted'
      if knows ~= '1' then phase = 'granted:' .. digits(ticket_of(tonumber(score))) end
      mark = hold(mark, head, limit, slot, lasting, fence, now - tonumber(since), phase, who)
      granted = granted + 1
      if head == me then mine = true end
      if limit == 1 then break end
    else
      dequeue(head, score, knows)
      cleared = cleared + 1
    end
  end
  -- The claim of a whole group goes on with it.
  if cleared == DEAD or (granted > 0 and granted < GRANTS and not mine) then tell(tells or TOLD, me) end
  return granted > 0, mine
end

-- Whether the token holds the lock now. `mark` is what stands in the lock.
local function is_held(token, mark)
  if mark == token then return true end
  if type(mark) ~= 'string' or not GROUP[mark] then return false end
  return (tonumber(redis.pcall('ZSCORE', holders, token) or 0) or 0) > now
end

-- Lengthens the lease of a holder, and shortens it only where it is to be `exact`. Returns how long it
-- is now.
local function extend(token, mark, ttl, exact)
  local left
  if mark == token then
    left = redis.call('PTTL', lock)
    if left < ttl or exact then
      redis.call('PEXPIRE', lock, ttl)
      left = ttl
    end
    redis.call('PEXPIRE', meta, digits(left + KEPT))
  else
    left = tonumber(redis.call('ZSCORE', holders, token)) - now
    redis.call('PEXPIRE', holders, digits(math.max(redis.call('PTTL', holders), left + KEPT, ttl + KEPT)))
    if left < ttl or exact then
      redis.call('ZADD', holders, digits(now + ttl), token)
      left = ttl
    end
    if redis.call('PTTL', lock) < ttl then
      redis.call('PEXPIRE', lock, digits(ttl + ttl / 3))
    end
    if mark == 'redlock:slots' then lengthen(slots, left + KEPT) end
    lengthen(meta, left + KEPT)
  end
  keep_memory()
  list(2 * left)
  return left
end

-- What a holder may believe of what is left by the server's clock: no more than it asks for itself, or
-- its job has asked for. That clock may have been set back meanwhile.
local function credible(left, ttl, token)
  if left <= ttl then return left end
  return math.max(ttl, math.min(left, tonumber(word('extended', token) or 0)))
end

-- The number in an outside order that an entry has, if any, and whose it is.
local function order_of(entry)
  return string.match(entry, '"order":(%d+)'), string.match(entry, '({.*)$')
end

-- From now on the number of this hold counts: it has the lock.
local function note_order(entry)
  local number, who = order_of(entry)
  if number and tonumber(number) > tonumber(redis.call('HGET', state, 'number') or -1) then
    set_state('number', number, 'number_by', who)
  end
end

-- The token has said that it knows of its grant. Returns its entry.
local function claimed(token, mark, ttl)
  local entry = redis.call('HGET', meta, token) or ''
  local start, phase = string.match(entry, PHASE)
  if phase ~= 'granted' then return entry end
  entry = start .. ' held ' .. string.match(entry, '({.*)$')
  redis.call('HSET', meta, token, entry)
  note_order(entry)
  if GROUP[mark] then
    promote(mark, nil, 0)
  elseif ttl < FIRST_BEAT then
    -- It may end before the next one looks by itself.
    tell(1)
  end
  return entry
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

