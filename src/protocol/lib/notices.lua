-- Notices for tokens: what has happened to their holds, to be read with their next request. Each is a key of its own, which
-- expires when it doesn't matter any more: `{K}:<kind>:<id>`.
-- @include text
-- @include state

local A_WHILE = 100000 -- how long a request may be under way, or a waiter not ask, ms: as long as the queue lives

local function notice_key(kind, token) return channels .. kind .. ':' .. id(token) end

-- The notice of a kind that was posted for a token, or false. A key of another type isn't ours.
local function notice(kind, token)
  local text = redis.pcall('GET', notice_key(kind, token))
  return type(text) == 'string' and text
end

-- Posts a notice that matters for `ms`. For the run that holds a lock: who forced it out ('forced'), that its
-- job has released the lock ('released'), or who wants it to end ('cancelled'). For a waiter that has left the
-- queue and may not know its ticket: that ticket ('left'). For one that was taken out of the queue, or whose grant
-- was taken away before it was confirmed: who did that ('removed'), nobody if its own run has withdrawn it.
-- For a guard that has ended ('over'): a request for it may still be under way.
local function post_notice(kind, token, text, ms)
  local key = notice_key(kind, token)
  if type(redis.pcall('GET', key)) == 'table' then return end
  redis.call('SET', key, text, 'PX', int_text(math.max(ms, redis.call('PTTL', key))))
end

-- Who asks for something, with the time of it.
local function with_time(who) return (string.gsub(who, '^{"', '{"asked":' .. int_text(now_ms) .. ',"', 1)) end

-- Posts a notice for a holder, whose run asks before its lease ends, which has `left` to last, or within a day.
local function post_to_holder(kind, token, text, left)
  post_notice(kind, token, text, math.max(DAY, left))
end
