// The names of JSON values, for headers that only mention them: base/json.h is four times as much to compile.
#pragma once

#include <boost/json/fwd.hpp>

namespace riptide {

namespace json = boost::json;

}  // namespace riptide
