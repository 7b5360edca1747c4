-- release: free this run's lock, or leave its queue, and hand the lock over.
-- ARGV[4] token
-- ARGV[5] by_job (1: released by the job itself, so that its run goes on without it; 0)
-- ARGV[6] how: the end of the run ('' if it never started its command)
-- ARGV[7] keep (ms that the run keeps the lock, counted from its grant, or 0)
-- ARGV[8] answered (1: every request for the lock got its reply, so none can arrive late; '' or missing otherwise)
-- Returns {1} when released; {3, ms left, 1 if for its guards} when kept; {2} when it had been released before; {0, who forced it out or nil, entry of a holder or nil} when another client has it, or nobody
-- @include lock

local token, by_job, how, keep = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

-- A single function, as in acquire.
return (function()

-- @include guards
-- @include ends
-- @include once

local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' then entry = false end
local hold = read_hold(entry)
local value = lock_value(how ~= '' and token)
local ours = is_held(token, value)
local lease = by_job == '1' and redis.call('PTTL', lock)

-- Records the end of a hold in the history, which tells a repeated request that the first one was done.
local function note_end()
  -- The request for the lock is withdrawn, so a delayed copy of it must not take effect any more.
  if how == '' and ARGV[8] ~= '1' then post_notice('removed', token, notice('removed', token) or cancelled_by(token, entry) or '', A_WHILE) end
  if not entry or how == '' then return end
  local by = how == 'cancelled' and cancelled_by(token, entry)
  -- A kept hold was released, and recorded, before.
  if hold.phase == 'kept' then return end
  record_end(token, entry, now_ms, ours and how or 'lost', by or '')
  -- Its confirmation may have been lost.
  if ours and hold.phase == 'granted' then note_order(entry) end
  if how == 'status:0' and ours then
    set_state('succeeded', int_text(now_ms))
    note_key(entry)
  end
end

-- Notes for the run, which goes on, that its job has released the lock. Only a supervising process would read the
-- notice.
local function note_for_run()
  if by_job == '1' and string.find(entry or '', '"instance":"', 1, true) then
    post_to_holder('released', token, '', lease)
  end
end

-- Returns how this hold ended, if it is one of the last 1,000.
local function own_end()
  local own_id = id(token)
  local last, ended = string.match(history_size == 0 and redis.call('HGET', state, 'ended') or '', '^(%x+) (%S+)$')
  if last == own_id then return ended end
  for _, record in ipairs(redis.pcall('LRANGE', history, 0, 999)) do
    last, ended = string.match(record, '^(%x+) %d+ (%S+) ')
    if last == own_id then return ended end
  end
end

-- The lock is kept as long as the run wants, and as long as its guards may live.
local left = math.max(0, math.min(keep, tonumber(hold.since or 0) + keep - now_ms))
local guarded = ours and guarded_for(token, entry) or 0
if ours and hold.start and math.max(left, guarded) > 0 then
  keep_hold(token, value, entry, math.max(left, guarded), guarded > 0 and now_ms + left or nil)
  note_end()
  note_for_run()
  return {3, math.max(left, guarded), guarded > 0 and 1 or 0}
end

local granted, place = nil, not ours and redis.pcall('ZSCORE', queue, token)
if ours then
  granted = end_hold(token, value)
elseif type(place) == 'string' then
  -- For a run that never started its command, note_end() posts more than its ticket.
  if how == '' then remove_waiter(token) else dequeue(token, place) end
  -- A key of another type isn't redlock's to hand over.
  if type(value) ~= 'table' then granted = grant_next(value) end
  redis.pcall('HDEL', meta, token)
else
  local answer = not_held(token, value)
  redis.call('HDEL', meta, token)
  if answer[1] == 0 then
    -- The run never started its command, so nothing was lost; or the lock was kept for a while that is over.
    if how == '' or hold.phase == 'kept' then
      note_end()
      return {1}
    end
    local ended = not entry and own_end()
    if ended and ended ~= 'lost' and ended ~= 'forced' and ended ~= 'expired' then return {by_job == '1' and 2 or 1} end
  end
  note_end()
  return answer
end
note_end()
note_for_run()
if not granted and type(value) ~= 'table' then retire_name(value == token) end
return {1}

end)()
