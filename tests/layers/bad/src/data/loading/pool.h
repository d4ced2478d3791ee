#include "data/order/claim.h"
