-- The ends of holds, for the history.
-- @include notices
-- @include state

-- Where a hold stands in its entry in meta, "<fence> <since> <limit> <slot> <waited> <phase> <who>":
-- granted (and not claimed yet), held, or kept (its run is over). The ticket of one that may not know
-- it yet stands with its grant: granted:<ticket>.
local PHASE = '^(%d+ %d+ %d+ %d+ %d+) (%l+):?(%d*) '

-- A grant was taken away: that it is claimed may be under way, by its token alone.
local function keep_ticket(token, entry)
  local _, _, ticket = string.match(entry or '', PHASE)
  if ticket and ticket ~= '' then post_notice('left', token, ticket) end
end

-- Writes the end of a hold into the history. `how` it ended is as in the manual, `by` (JSON or '')
-- the one that ended it. The caller also removes the entry, so it is written once.
local function record_end(token, entry, ended, how, by)
  if string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept ') then return end
  if history_size == 0 then
    -- The last one is known to a release that is repeated.
    redis.call('DEL', history)
    set_state('ended', id(token) .. ' ' .. how)
    return
  end
  local record = {id(token), int_text(ended), how, #by, by .. entry}
  local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
  -- Rarely, as the next holder waits for this.
  if length > history_size + history_size / 10 then redis.call('LTRIM', history, 0, history_size - 1) end
  -- Later on the expiry is refreshed whenever the lock is taken.
  if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
end

-- A client has taken the lock: what is remembered stays for another while. The state lives for twice
-- as long, as a success at the end of a hold counts from then.
local function touch_memory()
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
  redis.call('PEXPIRE', history, RETENTION)
end

-- The same for a hold that ended without a word, unless it was never claimed or its run is over. Its lease
-- ended at this moment, or would have: then it is unknown when the lock was taken away, but now it is seen.
local function record_vanished(token, entry, lease_end)
  local _, phase = string.match(entry or '', PHASE)
  keep_ticket(token, entry)
  if phase ~= 'held' then return end
  record_end(token, entry, math.min(lease_end, now_ms), lease_end > now_ms and 'lost' or 'expired', '')
end
