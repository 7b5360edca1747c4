-- guard: let work elsewhere join a hold, or extend the lease of that guard, which never outlasts the lease of the hold.
-- ARGV[4] token of the hold
-- ARGV[5] id of the guard
-- ARGV[6] who: the guard (JSON)
-- ARGV[7] insist (1: the guard's work hasn't ended although it was killed, so the hold must last for its TTL, even if its run is over; 0)
-- Returns {1, ms left (less the clock skew of the run), ms that the run asks for, fence, limit, slot, who wants the run to end or nil} when held; {2} when the run, or this guard, is over; {0, who forced it out or nil, entry of a holder or nil} when lost; {3} when there are too many guards
-- @include lock

return (function()

-- @include guards

local token, guard, who, insist = ARGV[4], ARGV[5], ARGV[6], ARGV[7] == '1'

-- The guard has left, and this request was repeated or delayed.
if notice('over', guard) then return {2} end
local value = redis.pcall('GET', lock)
if not is_held(token, value) then return not_held(token, value) end
local known = redis.pcall('HGET', meta, token)
-- Without an entry for the hold, its release wouldn't know of any guard.
if type(known) ~= 'string' then return {0, false, false} end
local before = redis.pcall('HGET', guards, guard)
-- A key of another type isn't redlock's.
before = type(before) == 'string' and before
-- A late request of a guard that has left must not keep the lock.
insist = insist and before
local hold = read_hold(known)
local is_kept = hold.phase == 'kept'
if is_kept and not insist then return {2} end

local lasts = value == token and redis.call('PTTL', lock) or tonumber(redis.call('ZSCORE', holders, token)) - now_ms
-- No more than the run itself counts on: the server's clock may have been set back, or the hold may be an unconfirmed
-- grant.
local left = math.max(0, credible(lasts, ttl_of(known) or lasts, known))
if insist then
  local ttl = ttl_of(known) or FIRST_BEAT
  if is_kept then
    local at_least = tonumber(hold.number) or now_ms + lasts
    left = math.max(left, ttl)
    keep_hold(token, value, known, math.max(left, at_least - now_ms), at_least)
  else
    left = extend_lease(token, value, math.max(left, ttl))
  end
end
if before then
  keep_guards(left)
elseif not has_room() then
  return {3}
end
-- The run has passed its token on, so it knows of its grant.
local entry = confirm(token, value, ttl_of(known) or FIRST_BEAT)
if not before then
  local count = hold.phase == 'guarded' and hold.number + 1 or 1
  redis.call('HSET', meta, token, hold.start .. ' guarded:' .. int_text(count) .. ' ' .. hold.who)
end
local since = string.match(before or '', '^%d+ %x+ (%d+) ') or int_text(now_ms)
redis.call('HSET', guards, guard, table.concat({int_text(now_ms + left), id(token), since, who}, ' '))
keep_guards(left)
return {1, math.max(0, left - skew_of(entry)), ttl_of(entry) or left, tonumber(hold.fence), tonumber(hold.limit), tonumber(hold.slot), cancelled_by(token, entry) or false}

end)()
