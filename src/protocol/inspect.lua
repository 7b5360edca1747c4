-- inspect: describe the key, the holders and the waiters. Read only; no token leaves the server.
-- ARGV[4] cursor of the list of holders ('0' at first, '' for none)
-- ARGV[5] start of the list of waiters: a score in the queue ('-inf' at first, '' for none)
-- Returns {type of the key, last fence or nil, server time (ms), holders {id, ms left (-1: never), entry or nil, live guards {entry…}, who has asked it to end or nil}…, waiters {id, entry}…, the freeze or nil, durations of the last holds (ms)…, {cursor of the list of holders, and start of that of waiters}, {time of the last success (ms) or nil, how many holds ended as a success, a failure, lost, forced, stopped and released, how many runs ended without the lock, and the last freezes, or nil each}}
-- @include lock
-- @include held
-- @include record
-- @include each_guard
-- @constant LOST of holders
local from_holder, from_score = ARGV[4], ARGV[5]
local ENTRIES = 250 -- the most entries in which lost holds are searched
local PAGE = 500 -- the most holders, and the most waiters, that one call returns
local SHOWN_GUARDS = 100 -- the most guards of a hold that are returned
local NEWEST = 10 -- how many of the newest holds are considered for durations; only successful ones have one

-- The live guards of all holds, by the ids of the holds; read once, and only if a hold has any.
local alive = nil
local function guards_of(hold, entry)
  local phase = read_hold(entry).phase
  if phase ~= 'guarded' and phase ~= 'kept' then return {} end
  if not alive then
    alive = {}
    each_guard(function(_, guard)
      local until_ms, whose = string.match(guard, '^(%d+) (%x+) ')
      if not whose or tonumber(until_ms) <= now_ms then return end
      local its = alive[whose] or {}
      if #its < SHOWN_GUARDS then its[#its + 1] = guard end
      alive[whose] = its
    end)
  end
  return alive[hold] or {}
end

-- Returns the description of a hold.
local function shown(token, left)
  local hold, entry = id(token), redis.call('HGET', meta, token)
  return {hold, left, entry, guards_of(hold, entry), cancelled_by(token, entry) or false}
end

local kind = redis.call('TYPE', lock).ok
local value = kind == 'string' and redis.call('GET', lock)
local held, next_holder = {}, '0'
if kind == 'string' and SHARED_VALUES[value] then
  local all = {}
  if from_holder ~= '' then next_holder, all = unpack(redis.call('ZSCAN', holders, from_holder, 'COUNT', PAGE)) end
  for n = 1, #all, 2 do
    local left = tonumber(all[n + 1]) - now_ms
    if left > 0 then held[#held + 1] = shown(all[n], left) end
  end
  if #held == 0 and from_holder == '0' and next_holder == '0' then kind = 'none' end
elseif value == FROZEN then
  kind = 'none'
elseif kind == 'string' then
  held[1] = shown(value, redis.call('PTTL', lock))
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
-- Holds that ended without a release keep their entries until the next holder counts them.
local lost = 0
for _, hold in ipairs(some_holds(ENTRIES)) do
  if is_at_work(hold.entry) and not is_held(hold.token, value) then lost = lost + 1 end
end
if lost > 0 then remembered[4] = int_text(math.min(lost, LOST) + (tonumber(remembered[4] or 0) or 0)) end

local lasted = {}
-- The durations are skipped only for the query of a waiter, if the lock is free: nothing uses them then.
if #held > 0 or #waiting > 0 or from_score == '' then
  -- A key of another type has no records.
  for _, record in ipairs(redis.pcall('LRANGE', history, 0, NEWEST - 1)) do
    local ended, how, since = string.match(record, '^%x+ (%d+) (%S+) 0 %d+ (%d+) ')
    if how == 'status:0' or how == 'released' then lasted[#lasted + 1] = math.min(2 ^ 53, math.max(0, ended - since)) end
  end
end
return {kind, last_fence, int_text(now_ms), held, waiting, freeze, lasted, {next_holder ~= '0' and next_holder or '', next_score}, remembered}
