-- The end of a hold, for the history.
-- @include state

-- An entry, or who did something, as it is remembered: without the TTL, the clock skew and the processes, which matter
-- only as long as the lock is held. They are the last fields.
local function brief(entry)
  local from = string.find(entry, ',"ttl":', 1, true)
  return from and string.sub(entry, 1, from - 1) .. '}' or entry
end

-- The counter for an end; `inspect` reads all of them. Any other end is a failure of COMMAND.
local RESULTS = {['status:0'] = 'success', expired = 'lost', lost = 'lost', forced = 'forced', cancelled = 'stopped', released = 'released'}

-- Writes the end of a hold into the history. `how` is one of the ends that the manual lists, `by` (JSON
-- or '') the run that ended it. The caller also removes the entry, so it is written once.
local function record_end(token, entry, ended, how, by)
  add_one('ended:' .. (RESULTS[how] or 'failure'))
  if history_size == 0 then
    -- The last end is kept for a release that is repeated.
    redis.call('UNLINK', history)
    set_state('ended', id(token) .. ' ' .. how)
    return
  end
  by = brief(by)
  local record = {id(token), int_text(ended), how, #by, by .. brief(entry)}
  local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
  -- Rarely, as the next holder waits for this.
  if length > history_size + history_size / 10 then redis.call('LTRIM', history, 0, history_size - 1) end
  -- Later on the expiry is refreshed on each day on which the lock is taken.
  if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
end
