-- Guards: work elsewhere under a hold. A guard has a lease of its own, which never outlasts that of the hold. When
-- the hold's run is over, the lock is kept until the last guard has ended, or its lease has.
-- @include lease
-- @include each_guard

-- Returns how much longer the guards of a hold may live, in ms; 0 if none lives. The hold's entry tells whether it
-- ever had one.
local function guarded_for(token, entry)
  local hold = read_hold(entry)
  if hold.number == '' or (hold.phase ~= 'guarded' and hold.phase ~= 'kept') then return 0 end
  local last, own_id = 0, id(token)
  each_guard(function(_, guard)
    local until_ms, whose = string.match(guard, '^(%d+) (%x+) ')
    if whose == own_id then last = math.max(last, tonumber(until_ms) - now_ms) end
  end)
  -- No guard was given more than the TTL, unless the clock was set back since then.
  return credible(last, ttl_of(entry) or last, entry)
end

-- Removes guards that are over. Returns true if one more guard is admitted.
local function has_room()
  local alive, over = 0, {}
  each_guard(function(field, guard)
    if tonumber(string.match(guard, '^%d+') or 0) > now_ms then alive = alive + 1 else over[#over + 1] = field end
  end)
  if #over > 0 then redis.call('HDEL', guards, unpack(over)) end
  return alive < MOST_GUARDS
end

-- Makes the guards' key outlive `ms` milliseconds.
local function keep_guards(ms)
  redis.call('PEXPIRE', guards, int_text(math.max(redis.call('PTTL', guards), ms + A_WHILE)))
end

-- Keeps the lock for `left` ms more, although the run of this hold is over. With guards, `at_least` is the moment
-- until which the run itself wants to keep it. Without guards, `at_least` is nil.
local function keep_hold(token, value, entry, left, at_least)
  if value == token then
    redis.call('PEXPIRE', lock, int_text(left))
    redis.call('PEXPIRE', meta, int_text(left + RETENTION))
  else
    extend_expiry(holders, left + RETENTION)
    extend_expiry(meta, left + RETENTION)
    extend_expiry(slots, left + RETENTION)
    redis.call('PEXPIRE', lock, int_text(math.max(left, redis.call('PTTL', lock))))
    redis.call('ZADD', holders, int_text(now_ms + left), token)
  end
  -- No process supervises the hold any more.
  local hold = read_hold(entry)
  local who = string.gsub(hold.who, ',?"instance":"[^"]*"', '')
  local kept = at_least and ' kept:' .. int_text(at_least) .. ' ' or ' kept '
  redis.call('HSET', meta, token, hold.start .. kept .. who)
  index_name(left)
  -- The next waiter must learn that the lock ends at another time. A key of another type has no waiters.
  notify(line, 0, 0, 'kept')
end

-- Ends a hold, and hands the lock over. Returns true if a waiter got it.
local function end_hold(token, value)
  if value ~= token then
    remove_member(token)
    return grant_next(after_leaving(value))
  end
  -- The next holder comes first; the rest of the hold is removed after that.
  local granted = grant_next(false)
  if granted then redis.pcall('HDEL', meta, token) else clear_lock() end
  return granted
end
