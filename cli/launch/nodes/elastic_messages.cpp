#include "cli/launch/nodes/elastic_messages.h"

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using Json = nlohmann::json;

template <class Read>
auto read_message(const std::string& text, Read&& read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    throw DistributedError(detail::format(
        "[launch] a message from another machine's launcher cannot be read; "
        "use the same version on all machines: {}",
        error.what()));
  }
}

}  // namespace

std::string to_text(const MachineReport& report) {
  Json seats = Json::array();
  for (const SeatReport& seat : report.seats) {
    seats.push_back(
        {seat.num_started,
         seat.num_ended,
         seat.process,
         seat.wait_status,
         seat.announced,
         seat.arrived});
  }
  return Json{
      {"launcher", report.launcher},
      {"wants_to_leave", report.wants_to_leave},
      {"seats", seats}}
      .dump();
}

MachineReport parse_report(const std::string& text) {
  return read_message(text, [](const Json& json) {
    MachineReport report;
    report.launcher = json.at("launcher");
    report.wants_to_leave = json.at("wants_to_leave");
    for (const Json& seat : json.at("seats")) {
      report.seats.push_back(
          {seat.at(0),
           seat.at(1),
           seat.at(2),
           seat.at(3),
           seat.at(4),
           seat.at(5)});
    }
    return report;
  });
}

std::string to_text(const GroupOrders& orders) {
  Json seats = Json::array();
  for (const SeatOrders& seat : orders.seats) {
    seats.push_back(
        {seat.rank, seat.num_started, seat.first_generation, seat.num_killed});
  }
  Json machines = Json::array();
  for (const MachineOrders& machine : orders.machines)
    machines.push_back({machine.launcher, machine.left_out, machine.refused});
  return Json{
      {"generation", orders.generation},
      {"target", orders.target},
      {"wanted", orders.wanted},
      {"num_ranks", orders.num_ranks},
      {"seats", seats},
      {"machines", machines}}
      .dump();
}

GroupOrders parse_orders(const std::string& text) {
  return read_message(text, [](const Json& json) {
    GroupOrders orders;
    orders.generation = json.at("generation");
    orders.target = json.at("target");
    orders.wanted = json.at("wanted");
    orders.num_ranks = json.at("num_ranks");
    for (const Json& seat : json.at("seats"))
      orders.seats.push_back({seat.at(0), seat.at(1), seat.at(2), seat.at(3)});
    for (const Json& machine : json.at("machines"))
      orders.machines.push_back({machine.at(0), machine.at(1), machine.at(2)});
    return orders;
  });
}

std::string to_text(const GroupOutcome& outcome) {
  return Json{
      {"code", outcome.code},
      {"num_restarts_left", outcome.num_restarts_left},
      {"machine", outcome.machine},
      {"reason", outcome.reason}}
      .dump();
}

GroupOutcome parse_outcome(const std::string& text) {
  return read_message(text, [](const Json& json) {
    return GroupOutcome{
        json.at("code"),
        json.at("num_restarts_left"),
        json.at("machine"),
        json.at("reason")};
  });
}

}  // namespace accelerate::cli
