-- inspect: what the key is, the holders and the waiters. Read only; no token leaves the server.
-- KEYS[1] the lock
-- KEYS[2] state
-- KEYS[3] meta
-- KEYS[4] holders
-- KEYS[5] queue
-- KEYS[6] waiters
-- KEYS[7] history
-- KEYS[11] guards
-- ARGV[1] of how many of the newest holds to return how long they lasted, if they succeeded
-- ARGV[2] where the list of holders goes on ('0' at first, '' when all are known)
-- ARGV[3] the score in the queue from which the list of waiters goes on ('-inf' at first, '' when all are known)
-- Returns {type of the key, last fence or nil, server time (ms), holders {id, ms left (-1: never), entry or nil, living guards {entry…}, who has asked it to end or nil}…, waiters {id, entry}…, what froze it or nil, ms that a hold lasted…, {where the list of holders goes on, and that of waiters}, {when a run succeeded last (ms) or nil, how many holds ended as a success, a failure, lost, forced, stopped and released, how many runs ended without the lock, and the last freezes, or nil each}}
local lock, state, meta, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, history, newest = KEYS[5], KEYS[6], KEYS[7], tonumber(ARGV[1])
local from_holder, from_score, guards = ARGV[2], ARGV[3], KEYS[11]
-- @constant LOST of holders
-- @include hold
local ENTRIES = 250 -- in how many entries lost holds are searched at most
local PAGE = 500 -- how many holders, and how many waiters, one call returns

local function id(token) return string.sub(redis.sha1hex(token), 1, 12) end

local kind = redis.call('TYPE', lock).ok
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local MOST_GUARDS = 100 -- how many are shown of a hold

-- The guards that live of all holds, by the ids of these; read once, and where there are any.
local alive = nil
local function guards_of(hold, entry)
  local phase = read_hold(entry).phase
  if phase ~= 'guarded' and phase ~= 'kept' then return {} end
  local cursor = not alive and '0'
  alive = alive or {}
  while cursor do
    local next, fields = unpack(redis.pcall('HSCAN', guards, cursor, 'COUNT', 1000))
    for n = 2, #(fields or {}), 2 do
      local until_ms, whose = string.match(fields[n], '^(%d+) (%x+) ')
      if whose and tonumber(until_ms) > now_ms then
        local its = alive[whose] or {}
        if #its < MOST_GUARDS then its[#its + 1] = fields[n] end
        alive[whose] = its
      end
    end
    cursor = next and next ~= '0' and next
  end
  return alive[hold] or {}
end

local fence, freeze, cancelled = unpack(redis.call('HMGET', state, 'fence', 'frozen', 'cancelled'))
local function lasts(entry) return tonumber(string.match(entry or '', '^%d+') or 0) > now_ms and entry end

-- Who has asked a holder to end, or false, as `cancelled_by` finds it.
local function asked_by(hold, entry)
  -- The keys of a lock begin with the same, before the word "state".
  local posted = redis.pcall('GET', string.sub(state, 1, -6) .. 'cancelled:' .. hold)
  if type(posted) == 'string' then return posted end
  local newest, who = string.match(cancelled or '', '^(%d+) (.*)$')
  return newest and fence_of(entry) <= tonumber(newest) and string.find(entry or '', '"instance":"', 1, true) and who
end

-- A hold as it is shown.
local function shown(token, left)
  local hold, entry = id(token), redis.call('HGET', meta, token)
  return {hold, left, entry, guards_of(hold, entry), asked_by(hold, entry) or false}
end

local held, next_holder = {}, '0'
if kind == 'string' then
  local value = redis.call('GET', lock)
  if value == 'redlock:shared' or value == 'redlock:slots' then
    local all = {}
    if from_holder ~= '' then next_holder, all = unpack(redis.call('ZSCAN', holders, from_holder, 'COUNT', PAGE)) end
    for n = 1, #all, 2 do
      local left = tonumber(all[n + 1]) - now_ms
      if left > 0 then held[#held + 1] = shown(all[n], left) end
    end
    if #held == 0 and from_holder == '0' and next_holder == '0' then kind = 'none' end
  elseif value == 'redlock:frozen' then
    kind = 'none'
  else
    held[1] = shown(value, redis.call('PTTL', lock))
  end
end

local waiting = {}
local page = from_score ~= '' and redis.call('ZRANGEBYSCORE', queue, from_score, '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE) or {}
local next_score = #page == 2 * PAGE and '(' .. page[#page] or ''
for n = 1, #page, 2 do
  local entry = redis.call('HGET', waiters, page[n]) or ''
  local until_ms = tonumber(string.match(entry, '^%d+'))
  if until_ms and until_ms > now_ms then waiting[#waiting + 1] = {id(page[n]), entry} end
end
local remembered = redis.call('HMGET', state, 'succeeded', 'ended:success', 'ended:failure', 'ended:lost', 'ended:forced', 'ended:stopped', 'ended:released', 'ended:skipped', 'freezes')

-- The next holder counts the holds that ended without a release: until then their entries are there.
local lost, value = 0, redis.pcall('GET', lock)
local entries = redis.pcall('HSCAN', meta, '0', 'COUNT', ENTRIES)[2] or {}
for n = 1, math.min(#entries, 2 * ENTRIES), 2 do
  local phase = read_hold(entries[n + 1]).phase
  if phase == 'held' or phase == 'guarded' then
    local is_shared = value == 'redlock:shared' or value == 'redlock:slots'
    local lease_end = is_shared and tonumber(redis.pcall('ZSCORE', holders, entries[n]) or 0)
    if value ~= entries[n] and (lease_end or 0) <= now_ms then lost = lost + 1 end
  end
end
if lost > 0 then remembered[4] = string.format('%.0f', math.min(lost, LOST) + (tonumber(remembered[4] or 0) or 0)) end

local lasted = {}
if newest > 0 and (#held > 0 or #waiting > 0) then
  local records = redis.pcall('LRANGE', history, 0, newest - 1)
  -- A key of another type has no records.
  for _, record in ipairs(records) do
    local ended, since = string.match(record, '^%x+ (%d+) status:0 0 %d+ (%d+) ')
    if not ended then ended, since = string.match(record, '^%x+ (%d+) released 0 %d+ (%d+) ') end
    if ended then lasted[#lasted + 1] = math.min(2 ^ 53, math.max(0, ended - since)) end
  end
end
return {kind, fence, string.format('%.0f', now_ms), held, waiting, lasts(freeze), lasted, {next_holder ~= '0' and next_holder or '', next_score}, remembered}
