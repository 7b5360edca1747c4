-- The last freezes: in a field of the state, "<since>-<until> ..." (ms), the oldest first.
-- @include state

local MOST_FREEZES = 20 -- how many are kept

-- Records that a present freeze ends now, and that another one lasts until `until_ms` (nil: no other).
local function note_freeze(until_ms)
  local kept = {}
  for since, ends in string.gmatch(redis.call('HGET', state, 'freezes') or '', '(%d+)%-(%d+)') do
    kept[#kept + 1] = since .. '-' .. int_text(math.min(tonumber(ends), now_ms))
  end
  if until_ms then kept[#kept + 1] = int_text(now_ms) .. '-' .. int_text(until_ms) end
  if kept[1] then set_state('freezes', table.concat(kept, ' ', math.max(1, #kept - MOST_FREEZES + 1))) end
end
