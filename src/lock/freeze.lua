-- freeze: let whoever holds the lock finish, and nobody new in, for a time.
-- KEYS: see promote
-- ARGV: 4 how long (ms), 5 who (JSON)
-- Returns: {how many hold it, entry of a holder or nil, who had frozen it before or nil}
local long, who = tonumber(ARGV[4]), ARGV[5]

local before = frozen > 0 and string.match(freeze, '^%d+ %d+ (.*)$')
frozen = now + long
local mark = look()
if type(mark) == 'table' then return mark end
redis.call('HSET', state, 'frozen', table.concat({digits(frozen), digits(now), who}, ' '))
redis.call('PEXPIRE', state, digits(2 * KEPT))
list(long)
-- Those who wait are to see why.
for _, token in ipairs(redis.call('ZRANGE', queue, 0, 99)) do
  redis.pcall('PUBLISH', channels .. id(token), 'frozen')
end

if not mark or mark == FROZEN then
  set_free()
  return {0, false, before}
end
if not GROUP[mark] then return {1, redis.call('HGET', meta, mark), before} end
local tokens = redis.call('ZRANGE', holders, 0, 0)
return {redis.call('ZCARD', holders), redis.call('HGET', meta, tokens[1] or ''), before}
