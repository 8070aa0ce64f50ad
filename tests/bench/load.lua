-- Sends prepared bodies, one line of a file each, every body once.
-- Arguments: file, byte offset of the first line, path, number of threads. With several threads, thread t of n takes
-- every n-th line.
local threads = {}

function setup(thread)
  thread:set("number", #threads)
  threads[#threads + 1] = thread
end

function init(args)
  lines = assert(io.open(args[1], "rb"))
  lines:setvbuf("full", 1048576)
  lines:seek("set", tonumber(args[2]))
  step = tonumber(args[4])
  for _ = 1, number do lines:read("*l") end
  head = "POST " .. args[3] .. " HTTP/1.1\r\nHost: notary\r\nContent-Type: application/json\r\nContent-Length: "
  taken, ran_out = 0, 0
end

function request()
  local body = lines:read("*l")
  if body == nil then
    ran_out = 1
    wrk.thread:stop()
    return head .. "0\r\n\r\n"
  end
  for _ = 2, step do lines:read("*l") end
  taken = taken + 1
  return head .. #body .. "\r\n\r\n" .. body
end

function done(summary, latency, requests)
  local quantiles = {}
  for _, p in ipairs({50, 90, 99, 99.9}) do
    quantiles[#quantiles + 1] = string.format('"p%s": %.3f', p, latency:percentile(p) / 1000)
  end
  local bodies_taken, out = 0, 0
  for _, thread in ipairs(threads) do
    bodies_taken = bodies_taken + thread:get("taken")
    out = out + thread:get("ran_out")
  end
  io.write(string.format(
    '\nRESULT {"requests": %d, "taken": %d, "ran_out": %d, "duration_s": %.3f, "errors_status": %d, '
      .. '"errors_connect": %d, "errors_read": %d, "errors_write": %d, "errors_timeout": %d, '
      .. '"latency_ms": {%s, "max": %.3f}}\n',
    summary.requests, bodies_taken, out, summary.duration / 1e6, summary.errors.status, summary.errors.connect,
    summary.errors.read, summary.errors.write, summary.errors.timeout, table.concat(quantiles, ", "),
    latency.max / 1000))
end
