-- The keys of `--once` with which runs have succeeded, in a field of the state: " =<key> <time (ms)>" for each, the
-- newest first. Keys contain no spaces.
-- @include state

local MOST_KEYS = 100 -- how many are kept

-- Returns the time of the last success with this key (ms), or nil.
local function succeeded_with(key)
  local all = redis.call('HGET', state, 'once') or ''
  local _, at = string.find(all, ' =' .. key .. ' ', 1, true)
  return at and tonumber(string.match(all, '^%d+', at + 1))
end

-- Records a success now, if the run's entry has a key.
local function note_key(entry)
  local key = string.match(entry, '"once":"([^"]*)"')
  if not key then return end
  local start = ' =' .. key .. ' '
  local kept = {start .. int_text(now_ms)}
  for one in string.gmatch(redis.call('HGET', state, 'once') or '', ' =%S+ %d+') do
    if #kept < MOST_KEYS and string.sub(one, 1, #start) ~= start then kept[#kept + 1] = one end
  end
  set_state('once', table.concat(kept))
end
