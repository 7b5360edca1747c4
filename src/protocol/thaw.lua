-- thaw: end a freeze, so that new holders are admitted again.
-- Returns {1, who had frozen it} when thawed; {0} when it wasn't frozen
-- @include lock
-- @include queue
-- @include names
-- @include freezes
frozen, line = 0, queue
local value = lock_value()
if type(value) == 'table' then return value end
redis.call('HDEL', state, 'frozen')
if not freeze then return {0} end
note_freeze(nil)
if value == FROZEN then
  clear_lock()
  value = false
end
grant_next(value)
retire_name()
return {1, string.match(freeze, '^%d+ %d+ (.*)$')}
