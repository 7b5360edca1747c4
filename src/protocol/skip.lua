-- skip: record that a run ended without the lock. Not part of the lock: nothing depends on it.
-- KEYS[12] skips: the runs that ended without the lock, the newest first
-- ARGV[4] why ('recent', 'busy', 'timeout', 'frozen', 'superseded', 'removed' or 'deadlock')
-- ARGV[5] ms (that the run waited; with 'recent', since the success)
-- ARGV[6] who (JSON)
-- ARGV[7] by (JSON: the run that blocked it, or '')
-- Returns {1, the host that had the success or nil}
-- @include lock
-- @include names
-- @include state
local skips, why, ms, who, by = KEYS[12], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
-- The counter is optional, because a full server refuses it.
pcall(add_one, 'ended:skipped')
if history_size == 0 then
  redis.call('UNLINK', skips)
  return {1}
end

-- Only the history knows the run of the recent success.
local winner
if why == 'recent' then
  for _, record in ipairs(redis.pcall('LRANGE', history, 0, 9)) do
    local entry = string.match(record, '^%x+ %d+ status:0 .-({.*)$')
    if entry then
      winner = string.match(entry, '"host":"([^"\\]*)"')
      local process = string.match(entry, '"host":"[^"\\]*","user":"[^"\\]*","pid":%d+')
      by = process and '{' .. process .. '}' or by
      break
    end
  end
end

local record = table.concat({int_text(now_ms), why, ms, #by, by .. who}, ' ')
local length = tonumber(redis.pcall('LPUSH', skips, record)) or 0
if length > history_size then redis.call('LTRIM', skips, 0, history_size - 1) end
if length > 0 then redis.call('PEXPIRE', skips, RETENTION) end
-- The index keeps the name for as long, but not as one in use.
if (tonumber(redis.pcall('ZSCORE', index, name) or 0) or 0) < now_ms - DAY then put_name(now_ms) end
return {1, winner}
