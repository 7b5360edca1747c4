-- Messages to waiters.

-- The command for one that listens to its channel, by its entry: in a cluster the channel is one of the slot, and
-- the message stays on the slot's node.
local PUBLISH = {['1'] = 'PUBLISH', ['2'] = 'SPUBLISH'}

-- Sends a message to the waiter with this id and entry, so that it asks again.
local function send_message(id, entry, message)
  local listens = string.match(type(entry) == 'string' and entry or '', '^%S+ %d+ %d+ %S+ ([12]) ')
  redis.pcall(PUBLISH[listens or '1'], channels .. id, message)
end
