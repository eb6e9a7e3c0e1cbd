// The host proxy as a thread, for Python and for tests.
#pragma once
#include "config.h"

extern "C" {

// Starts a thread that serves the rings until it is stopped. The configuration is copied; all that it points to stays.
// Null if it is not usable: mk_proxy_error(null) says why.
void* mk_proxy_start(const mk::ProxyConfig* config);

// Waits until every command published before the call has left this end and the rings are empty.
// 0: so it is; 1: not within timeout_ns; 2: the proxy failed.
int mk_proxy_drain(void* proxy, unsigned long long timeout_ns);

// Ends the thread at once, without draining, and frees the proxy. What failed is still told by mk_proxy_error(null).
void mk_proxy_stop(void* proxy, mk::ProxyStats* stats);

// Null, or what failed, in one line. Of a running proxy; with null: of this thread's last start or stop.
const char* mk_proxy_error(void* proxy);
}
