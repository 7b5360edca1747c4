-- release: free our lock, or leave its queue, and hand the lock on.
-- ARGV[4] token
-- ARGV[5] by_job (1: released by its own job, so that its run goes on without it; 0)
-- ARGV[6] how the run ended ('' when there was none)
-- ARGV[7] keep (ms that the lock stays ours, counted from when we got it, or 0)
-- ARGV[8] answered (1: every request for it was answered, so that none can arrive late; '' or left out)
-- Returns {1} when released; {3, ms left, 1 if for its guards} when kept; {2} when it had been released before; {0, who forced us out or nil, entry of a holder or nil} when it wasn't ours; {4} when released, and dead waiters are left: the same call once more removes some of them; {5} when the release of a run has handed an exclusive lock on to one of several waiters: the same call a moment later notifies the others if the grant isn't confirmed by then
-- @include lock

-- @constant GRANT_TTL, DELIVERED_TTL, QUEUE_TTL, HELD_FOR_EACH, LONG_HOLD of queue
-- @constant WAITER of messages

-- The usual cases come before anything else is defined, which takes longer than their commands: an exclusive
-- lock without leftovers, and with no waiter or one that it can be handed to without looking at those
-- behind. The rest would do just the same.
if #ARGV == 7 and ARGV[5] == '0' and ARGV[7] == '0' and frozen == 0 and last_fence and history_size > 0
  and redis.pcall('GET', lock) == ARGV[4] and redis.call('EXISTS', holders, slots) == 0 then
  local token, how = ARGV[4], ARGV[6]
  local entry = redis.pcall('HGET', meta, token)
  if type(entry) ~= 'string' then entry = '' end
  local since, phase = string.match(entry, '^%d+ (%d+) 1 1 %d+ (%l+):?%d* ')
  local waiting = redis.pcall('ZCARD', queue)
  if not string.match(how, '^status:') or type(waiting) ~= 'number' then since = nil end
  if phase ~= 'held' and phase ~= 'granted' then since = nil end
  -- The number of a run that never confirmed its grant is still to be noted.
  if phase == 'granted' and string.find(entry, '"order":', 1, true) then since = nil end
  -- And so is the key of one that has succeeded.
  if string.find(entry, '"once":"', 1, true) then since = nil end
  -- Times are put together as texts, as in acquire.
  local micros, done, handed_on = string.sub('00000' .. time[2], -6), false, false
  local unsure = since and waiting > 1 and now_ms - since >= LONG_HOLD
  local at = time[1] .. string.sub(micros, 1, 3)
  if since and waiting == 0 then
    redis.call('UNLINK', lock, meta)
    done = true
  -- The first grant of a day has more to do.
  elseif since and (waiting == 1 or unsure or now_ms - since < HELD_FOR_EACH) and math.floor(last_fence / (1000 * DAY)) == math.floor(now_ms / DAY) then
    local head, score = unpack(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES'))
    local waiter = redis.pcall('HGET', waiters, head)
    local until_ms, seen, knows, limit, queued_at, listens, who = string.match(type(waiter) == 'string' and waiter or '', WAITER)
    local notified_at = tonumber(string.match(notified or '', '^(%d+) ') or 0)
    if limit == '1' and listens ~= '0' and tonumber(until_ms) > now_ms and (tonumber(seen) >= notified_at or now_ms < notified_at + GRANT_TTL)
      and tonumber(score) >= superseded then
      local fence = time[1] .. micros
      if tonumber(last_fence) >= tonumber(fence) then fence = string.format('%.0f', last_fence + 1) end
      local channel = channels .. string.sub(redis.sha1hex(head), 1, 12)
      -- Before the message, as in grant_next.
      redis.call('ZREM', queue, head)
      local publish = listens == '2' and 'SPUBLISH' or 'PUBLISH'
      local heard = redis.pcall(publish, channel, table.concat({'granted', fence, '1', at, DELIVERED_TTL .. (unsure and ' soon' or '')}, ' '))
      if type(heard) ~= 'number' or heard == 0 then
        -- The rest deals with it.
        redis.call('ZADD', queue, score, head)
        redis.call('PEXPIRE', queue, QUEUE_TTL)
      else
        redis.call('HDEL', waiters, head)
        redis.call('HSET', state, 'fence', fence)
        redis.call('SET', lock, head, 'PX', DELIVERED_TTL)
        local waited = string.format('%.0f', math.max(0, now_ms - queued_at))
        local granted = knows == '0' and string.format('granted:%.0f', score) or 'granted'
        redis.call('HSET', meta, head, table.concat({fence, at, '1 1', waited, granted, who}, ' '))
        redis.call('PEXPIRE', meta, DELIVERED_TTL + RETENTION)
        redis.call('HDEL', meta, token)
        done, handed_on = true, true
      end
    end
  end
  if done then
    local id = string.sub(redis.sha1hex(token), 1, 12)
    -- As `brief` does it.
    local from = string.find(entry, ',"ttl":', 1, true)
    if from then entry = string.sub(entry, 1, from - 1) .. '}' end
    local record = table.concat({id, at, how, '0', entry}, ' ')
    local length = tonumber(redis.pcall('LPUSH', history, record)) or 0
    if length > history_size + history_size / 10 then redis.call('LTRIM', history, 0, history_size - 1) end
    if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
    local counter = how == 'status:0' and 'ended:success' or 'ended:failure'
    local ended = string.format('%.0f', (tonumber(redis.call('HGET', state, counter)) or 0) + 1)
    if how == 'status:0' then
      redis.call('HSET', state, 'succeeded', at, counter, ended)
    else
      redis.call('HSET', state, counter, ended)
    end
    if not handed_on and redis.pcall('ZADD', index, at, name) == 1 then
      redis.call('PEXPIRE', index, 2 * RETENTION)
    end
    return {handed_on and unsure and 5 or 1}
  end
end

-- The rest is one function: its functions reach the variables above through it. If each had to
-- look them up itself, that would take a short script more time than its commands.
return (function()

-- @include guards
-- @include once

local token, by_job, how, keep = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' then entry = false end
local value = lock_value(how ~= '' and token)
local ours = is_held(token, value)
local lease = by_job == '1' and redis.call('PTTL', lock)

-- Records the end of a hold: in the history, where a repeated request finds that the first one was done.
local function note_end()
  -- It is withdrawn: a request for it that was held up on its way must not take effect any more.
  if how == '' and ARGV[8] ~= '1' then post_notice('removed', token, notice('removed', token) or cancelled_by(token, entry) or '', A_WHILE) end
  if not entry or how == '' then return end
  local by = false
  if how == 'cancelled' then
    by = cancelled_by(token, entry)
    redis.pcall('HDEL', notices, 'cancelled:' .. id(token))
  end
  record_end(token, entry, now_ms, ours and how or 'lost', by or '')
  -- Its confirmation may have been lost on its way.
  if ours and string.match(entry, '^%d+ %d+ %d+ %d+ %d+ granted[: ]') then note_order(entry) end
  -- What is kept was released before: a repetition is no later success.
  local is_new = ours and not string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept[: ]')
  if how == 'status:0' and is_new then
    set_state('succeeded', int_text(now_ms))
    note_key(entry)
  end
end

-- The job has released the lock, and its run goes on. Only a process that watches over the lock would read it.
local function note_for_run()
  if by_job == '1' and string.find(entry or '', '"instance":"', 1, true) then
    post_to_holder('released', token, '', lease)
  end
end

-- Whether the first in the queue wants the lock for itself alone.
local function is_for_one()
  local head = redis.pcall('ZRANGE', queue, 0, 0)[1]
  local waiter = head and redis.pcall('HGET', waiters, head)
  local _, _, _, limit = string.match(type(waiter) == 'string' and waiter or '', WAITER)
  return limit == '1'
end

-- Its call was repeated: it may be that dead waiters were left, or that the waiter which got the lock hasn't confirmed
-- that, so that it may be suspended, and others with it. Returns whether some dead ones still are left.
local function goes_on(value)
  if type(value) == 'table' then return false end
  local again, more = grant_next(value)
  local holder = value and redis.pcall('HGET', meta, value)
  local _, phase = string.match(type(holder) == 'string' and holder or '', PHASE)
  if not again and not more and phase == 'granted' then notify_next(MOST_NOTIFIED) end
  return more
end

-- The lock is kept as long as the run wants, and as long as its guards may live.
local start, since = string.match(entry or '', '^(%d+ (%d+) %d+ %d+ %d+) ')
local left = math.max(0, math.min(keep, tonumber(since or 0) + keep - now_ms))
local guarded = ours and guarded_for(token, entry) or 0
if ours and start and math.max(left, guarded) > 0 then
  keep_hold(token, value, entry, math.max(left, guarded), guarded > 0 and now_ms + left or nil)
  note_end()
  note_for_run()
  return {3, math.max(left, guarded), guarded > 0 and 1 or 0}
end

local granted, more, unsure = false, false, false
local place = not ours and redis.pcall('ZSCORE', queue, token)
if ours then
  local held_for = now_ms - tonumber(since or now_ms)
  -- A run looks whether a waiter that has the lock alone has confirmed that. Else others are notified at once: the longer
  -- the hold was, the more.
  unsure = value == token and by_job == '0' and how ~= '' and held_for >= LONG_HOLD and is_for_one()
  granted, more = end_hold(token, value, unsure and 0 or math.floor(held_for / HELD_FOR_EACH), unsure)
  unsure = unsure and granted and redis.call('ZCARD', queue) > 0
elseif type(place) == 'string' then
  -- Also where it knows its ticket: its own first request, if it arrives late, must not pass for a newer one.
  dequeue(token, place, how == '' and '1' or '0')
  -- A key of another type isn't ours to look into.
  if type(value) ~= 'table' then granted, more = grant_next(value) end
  redis.pcall('HDEL', meta, token)
else
  local answer = not_held(token, value)
  redis.call('HDEL', meta, token)
  if by_job == '0' then
    redis.pcall('HDEL', notices, 'forced:' .. id(token), 'released:' .. id(token))
  end
  if answer[1] == 0 then
    -- Nothing was done under it, so that nothing was lost with it; or it was kept for a while that is over.
    if how == '' or string.match(entry or '', '^%d+ %d+ %d+ %d+ %d+ kept[: ]') then
      note_end()
      return goes_on(value) and {4} or {1}
    end
    -- How its hold ended, if that is one of the last 1,000.
    local own_id = id(token)
    local last, ended = string.match(history_size == 0 and redis.call('HGET', state, 'ended') or '', '^(%x+) (%S+)$')
    if last ~= own_id then ended = nil end
    -- Usually it is among the last few: its call is repeated at once.
    for _, to in ipairs(not entry and {19, 999} or {}) do
      for _, record in ipairs(ended and {} or redis.pcall('LRANGE', history, 0, to)) do
        local whose, how = string.match(record, '^(%x+) %d+ (%S+) ')
        if whose == own_id then
          ended = how
          break
        end
      end
    end
    if ended and ended ~= 'lost' and ended ~= 'forced' and ended ~= 'expired' then
      return goes_on(value) and {4} or {by_job == '1' and 2 or 1}
    end
  end
  note_end()
  return answer
end
note_end()
note_for_run()
if not granted and type(value) ~= 'table' then retire_name(value == token) end
return {more and 4 or unsure and 5 or 1}

end)()
