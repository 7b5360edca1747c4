-- thaw: let others in again.
-- KEYS: see promote
-- ARGV: none
-- Returns: {1, who had frozen it} when thawed; {0} when it wasn't frozen
if frozen == 0 then
  redis.call('HDEL', state, 'frozen')
  return {0}
end
frozen = 0
local mark = look()
if type(mark) == 'table' then return mark end
redis.call('HDEL', state, 'frozen')
if mark == FROZEN then
  redis.call('DEL', lock)
  mark = false
end
promote(mark)
unlist()
return {1, string.match(freeze, '^%d+ %d+ (.*)$')}
