// The device library, whole.
#pragma once
#include "command_queue.h"
#include "communication.h"
#include "controller.h"
#include "pace.h"
#include "roles.h"
#include "tiles.h"
#include "trace.h"
