-- Sends prepared bodies, one line of a file each, every body once. Arguments: file, first line's byte offset, path.
-- With several threads, thread t of n takes every n-th line.
local thread_count = 0

function setup(thread)
  thread:set("number", thread_count)
  thread_count = thread_count + 1
end

function init(args)
  lines = assert(io.open(args[1], "rb"))
  lines:setvbuf("full", 1048576)
  lines:seek("set", tonumber(args[2]))
  step = tonumber(args[4])
  for _ = 1, number do lines:read("*l") end
  head = "POST " .. args[3] .. " HTTP/1.1\r\nHost: notary\r\nContent-Type: application/json\r\nContent-Length: "
  sent = 0
end

function request()
  local body = lines:read("*l")
  if body == nil then
    wrk.thread:stop()
    return head .. "0\r\n\r\n"
  end
  for _ = 2, step do lines:read("*l") end
  sent = sent + 1
  return head .. #body .. "\r\n\r\n" .. body
end

function done(summary, latency, requests)
  local quantiles = {}
  for _, p in ipairs({50, 90, 99, 99.9}) do
    quantiles[#quantiles + 1] = string.format('"p%s": %.3f', p, latency:percentile(p) / 1000)
  end
  io.write(string.format(
    '\nRESULT {"requests": %d, "duration_s": %.3f, "bytes": %d, "errors_status": %d, "errors_connect": %d, '
      .. '"errors_read": %d, "errors_write": %d, "errors_timeout": %d, "latency_ms": {%s, "max": %.3f}}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, summary.errors.status, summary.errors.connect,
    summary.errors.read, summary.errors.write, summary.errors.timeout, table.concat(quantiles, ", "), latency.max / 1000))
end
