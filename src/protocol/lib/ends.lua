-- The end of a hold, for the history.
-- @include state

-- Returns an entry, or the run that did something, as it is remembered: without the TTL, the clock skew and the
-- processes. These are the last fields, and matter only as long as the lock is held.
local function brief(entry)
  local from = string.find(entry, ',"ttl":', 1, true)
  return from and string.sub(entry, 1, from - 1) .. '}' or entry
end

-- The counter of each end; `inspect` reads all of them. Any other end is a failure of COMMAND.
local RESULTS = {['status:0'] = 'success', expired = 'lost', lost = 'lost', forced = 'forced', cancelled = 'stopped', released = 'released'}

-- Writes the end of a hold into the history. `how` is one of the ends that the manual lists, `by` (JSON
-- or '') the run that ended it. The caller also removes the entry, so it is written once.
local function record_end(token, entry, ended, how, by)
  add_one('ended:' .. (RESULTS[how] or 'failure'))
  if history_size == 0 then
    -- The last end is kept for a repeated release.
    redis.call('UNLINK', history)
    set_state('ended', id(token) .. ' ' .. how)
    return
  end
  by = brief(by)
  local record = {id(token), int_text(ended), how, #by, by .. brief(entry)}
  local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
  -- Trimmed rarely, because the next holder waits for this script.
  if length > history_size + history_size / 10 then redis.call('LTRIM', history, 0, history_size - 1) end
  -- Later the first grant of each day refreshes this expiry.
  if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
end
