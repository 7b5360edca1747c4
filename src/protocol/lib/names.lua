-- The index of the names in use. The index and the history aren't part of the lock, which doesn't depend on
-- what others have put there.
-- @include text

-- Writes the name into the index, with the time from which on it isn't in use.
local function put_name(until_ms)
  local added = redis.pcall('ZADD', index, int_text(until_ms), name)
  if added == 1 then redis.call('ZREMRANGEBYSCORE', index, '-inf', int_text(now_ms - RETENTION)) end
  -- A key of another type isn't ours, nor is its expiry.
  if type(added) == 'number' then redis.call('PEXPIRE', index, int_text(2 * RETENTION)) end
end

-- Notes in the index that the name is in use: for days, so that it is rarely written, or for `ms`.
local function index_name(ms)
  local until_ms = tonumber(redis.pcall('ZSCORE', index, name) or 0) or 0
  if until_ms < now_ms + (ms or DAY) then put_name(now_ms + (ms or IN_USE)) end
end

-- Notes in the index that the lock is neither held by redlock nor waited for any more; its name stays
-- there for as long as its history. The caller may know that the lock is `free`.
local function retire_name(free)
  if frozen > 0 or redis.call('EXISTS', queue) == 1 then return end
  local value = not free and redis.call('GET', lock)
  if not value or (not SHARED_VALUES[value] and not redis.call('HGET', meta, value)) then put_name(now_ms) end
end
