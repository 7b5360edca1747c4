-- The ends of holds, for the history.
-- @include notices
-- @include state

-- The entry of a hold in meta, "<fence> <since> <limit> <slot> <waited> <phase> <who>":
-- granted (and not confirmed yet), held: (the replicas may not have it yet), held, guarded (work elsewhere has joined it) or
-- kept (its run is over). A number may be added: granted:<ticket> of a waiter that may not know it, guarded:<how many>, and
-- kept:<until when at least (ms)> where it is kept for its guards.
local PHASE = '^(%d+ %d+ %d+ %d+ %d+) (%l+):?(%d*) '

-- Up to `most` of the holds that stand in `meta`, the oldest first: the token, the entry, and until when its lease
-- lasts, or would have. The expiry of `meta` is that of the last exclusive lease, and RETENTION.
local function some_holds(most)
  -- A key of another type has none.
  local all = redis.pcall('HSCAN', meta, '0', 'COUNT', most)[2] or {}
  local ends = now_ms + redis.call('PTTL', meta) - RETENTION
  local some = {}
  for n = 1, math.min(#all, 2 * most), 2 do
    local token, entry = all[n], all[n + 1]
    local fence = tonumber(string.match(entry, '^%d+') or 0)
    some[#some + 1] = {token = token, entry = entry, fence = fence, lease_end = tonumber(redis.pcall('ZSCORE', holders, token)) or ends}
  end
  table.sort(some, function(one, other) return one.fence < other.fence or one.fence == other.fence and one.token < other.token end)
  return some
end

-- A grant was taken away: its confirmation, with nothing but the token, may be under way.
local function keep_ticket(token, entry)
  local _, phase, ticket = string.match(entry or '', PHASE)
  if phase == 'granted' and ticket ~= '' then post_notice('left', token, ticket, A_WHILE) end
end

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
  if string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept[: ]') then return end
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

-- The lock is in use: renews the expiry of what is remembered. The state lives for twice
-- as long, as a success at the end of a hold counts from then.
local function touch_memory()
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
  redis.call('PEXPIRE', history, RETENTION)
end

-- The same for a hold that ended without a release, unless it was never confirmed or its run is over.
-- `lease_end` is when its lease ended, or would have: then the lock was taken away at an unknown moment
-- before now.
local function record_vanished(token, entry, lease_end)
  local _, phase = string.match(entry or '', PHASE)
  keep_ticket(token, entry)
  if phase ~= 'held' and phase ~= 'guarded' then return end
  record_end(token, entry, math.min(lease_end, now_ms), lease_end > now_ms and 'lost' or 'expired', '')
end
