-- Notices for tokens: what has happened to their holds, to be read with their next request. Each is
-- "<until when it matters (ms)> <text>" in the field <kind>:<id>. A row of these fields, numbered from `first` to
-- `last`, is what finds those that don't matter any more.
-- @include text
-- @include state

local A_WHILE = 100000 -- how long a request may be under way, or a waiter not ask, ms: as long as the queue lives
local MOST_NOTICES = 2000 -- from how many on those that matter for no more than A_WHILE make room

-- The notice of a kind that was posted for a token, or false. A key of another type isn't ours.
local function notice(kind, token)
  local posted = redis.pcall('HGET', notices, kind .. ':' .. id(token))
  local until_ms, text = string.match(type(posted) == 'string' and posted or '', '^(%d+) (.*)$')
  return until_ms and tonumber(until_ms) > now_ms and text or false
end

-- Looks at the oldest notice of the row: removes it if it is over, or if the row is full of those that are over soon, or
-- else moves it to the end.
local function tidy_notices(first, last)
  local matters_until = last - first + 1 < MOST_NOTICES and now_ms or now_ms + A_WHILE
  local place = int_text(first)
  local field = redis.call('HGET', notices, place) or ''
  local until_ms = string.match(redis.call('HGET', notices, field) or '', '^(%d+) ')
  if until_ms and tonumber(until_ms) > matters_until then
    last = last + 1
    redis.call('HSET', notices, int_text(last), field)
    redis.call('HDEL', notices, place)
  else
    redis.call('HDEL', notices, place, field)
  end
  return last
end

-- Posts a notice that matters for `ms`. For the run that holds a lock: who forced it out ('forced'), that its
-- job has released the lock ('released'), or who wants it to end ('cancelled'). For a waiter that has left the
-- queue and may not know its ticket: that ticket ('left'). For one that was taken out of the queue, or whose grant
-- was taken away before it was confirmed: who did that ('removed'), nobody if its own run has withdrawn it.
-- For a guard that has ended ('over'): a request for it may still be under way.
local function post_notice(kind, token, text, ms)
  local field = kind .. ':' .. id(token)
  local known = redis.pcall('HMGET', notices, 'first', 'last', field)
  if known.err then return end
  local first, last, posted = tonumber(known[1] or 1), tonumber(known[2] or 0), known[3]
  local until_ms = math.max(now_ms + ms, tonumber(string.match(posted or '', '^%d+') or 0))
  redis.call('HSET', notices, field, int_text(until_ms) .. ' ' .. text)
  extend_expiry(notices, ms)
  if posted then return end
  -- Two for each that comes, so that the row gets shorter.
  for _ = 1, math.min(2, last + 1 - first) do
    last = tidy_notices(first, last)
    first = first + 1
  end
  last = last + 1
  redis.call('HSET', notices, int_text(last), field, 'first', int_text(first), 'last', int_text(last))
end

-- Who asks for something, with the time of it.
local function with_time(who) return (string.gsub(who, '^{"', '{"asked":' .. int_text(now_ms) .. ',"', 1)) end

-- Posts a notice for a holder, whose run asks before its lease ends, which has `left` to last, or within a day.
local function post_to_holder(kind, token, text, left)
  post_notice(kind, token, text, math.max(DAY, left))
end
