-- thaw: let others in again.
-- KEYS: see promote
-- ARGV: none
-- Returns: {1, who had frozen it} when thawed; {0} when it wasn't frozen
local mark = redis.call('GET', lock)
redis.call('HDEL', state, 'frozen')
if frozen == 0 then return {0} end
frozen = 0
if mark == FROZEN then
  redis.call('DEL', lock)
  mark = false
end
if promote(mark) then lengthen(meta, CLAIM + KEPT) end
unlist()
return {1, string.match(freeze, '^%d+ %d+ (.*)$')}
