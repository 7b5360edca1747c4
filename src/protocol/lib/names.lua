-- The index of the names in use. The index and the history aren't part of the lock, which doesn't depend on their
-- content.
-- @include text

-- Writes the name into the index, with the time until which it is in use.
local function put_name(until_ms)
  local added = redis.pcall('ZADD', index, int_text(until_ms), name)
  if added == 1 then redis.call('ZREMRANGEBYSCORE', index, '-inf', int_text(now_ms - RETENTION)) end
  -- A key of another type isn't redlock's, nor is its expiry.
  if type(added) == 'number' then redis.call('PEXPIRE', index, int_text(2 * RETENTION)) end
end

-- Records in the index that the name is in use: for two days, so that it is rarely written, or for `ms`.
local function index_name(ms)
  local until_ms = tonumber(redis.pcall('ZSCORE', index, name) or 0) or 0
  if until_ms < now_ms + (ms or DAY) then put_name(now_ms + (ms or IN_USE)) end
end

-- Records in the index that redlock neither holds the lock nor waits for it any more. The name stays there as long as
-- its history. `free`: the caller knows that the lock is free.
local function retire_name(free)
  if frozen > 0 or redis.call('EXISTS', queue) == 1 then return end
  local value = not free and redis.call('GET', lock)
  if not value or (not SHARED_VALUES[value] and not redis.call('HGET', meta, value)) then put_name(now_ms) end
end
