-- renew: lengthen our lease. Never shortens it, never creates a lock that is gone.
-- ARGV[4] token
-- ARGV[5] ttl (ms)
-- ARGV[6] whose end means that nobody uses it any more ('' as before, or '=' and an identity, which may be empty)
-- ARGV[7] told (1: whoever watches the lock is to look how long it lasts, 0)
-- Returns {1, ms left, fence, limit, slot} when renewed; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
-- @include lock
-- @include lease
local token, ttl, instance, notified = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]

-- A key that is no string any more isn't our lock either.
local value = redis.pcall('GET', lock)
if not is_held(token, value) then return not_held(token, value) end
local left = extend_lease(token, value, ttl)
local entry = confirm(token, value, ttl)
if instance ~= '' and entry ~= '' then
  entry = string.gsub(entry, '"instance":"[^"]*"', '"instance":"' .. string.sub(instance, 2) .. '"')
  redis.call('HSET', meta, token, entry)
end
if notified == '1' then
  -- Its run is to know how much of it is true.
  post_notice('extended', token, int_text(math.max(ttl, credible(left, ttl, token))))
  -- An exclusive lock's own expiry has changed, which they hear of.
  if value ~= token then redis.call('SET', lock, value, 'KEEPTTL') end
end
local fence, limit, slot = string.match(entry, '^(%d+) %d+ (%d+) (%d+) ')
return {1, credible(left, ttl, token), tonumber(fence or 0), tonumber(limit or 1), tonumber(slot or 0)}
