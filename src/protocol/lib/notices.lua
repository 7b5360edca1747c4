-- Notices for tokens: events of their holds, which their runs read with the next request. Each notice is a key of its
-- own, `{K}:<kind>:<id>`, which expires when it doesn't matter any more.
-- @include text
-- @include state

local A_WHILE = 100000 -- the longest delay of a request, or pause of a waiter, ms: as long as the queue lives

local function notice_key(kind, token) return channels .. kind .. ':' .. id(token) end

-- Returns the text of a token's notice of this kind, or false. A key of another type isn't redlock's.
local function notice(kind, token)
  local text = redis.pcall('GET', notice_key(kind, token))
  return type(text) == 'string' and text
end

-- Posts a notice that matters for `ms`. Three kinds are for the run that holds a lock: 'forced' (who forced it out),
-- 'released' (by its own job), and 'cancelled' (who wants it to end). 'left' is for a waiter that has left the queue
-- and may not know its ticket: its ticket. 'removed' is for a waiter that was taken out of the queue, or whose grant
-- was taken away before it was confirmed: who did that, '' if its own run has withdrawn it. 'over' is for a guard
-- that has ended, because a request for it may still be under way.
local function post_notice(kind, token, text, ms)
  local key = notice_key(kind, token)
  if type(redis.pcall('GET', key)) == 'table' then return end
  redis.call('SET', key, text, 'PX', int_text(math.max(ms, redis.call('PTTL', key))))
end

-- Returns a requesting run (JSON) with the time of its request.
local function with_time(who) return (string.gsub(who, '^{"', '{"asked":' .. int_text(now_ms) .. ',"', 1)) end

-- Posts a notice for a holder. Its run reads it before its lease, with `left` ms to last, ends, or within a day.
local function post_to_holder(kind, token, text, left)
  post_notice(kind, token, text, math.max(DAY, left))
end
