#include "lathe/optim/optimizers/optimizers.h"

#include <utility>

namespace lathe {
namespace {

std::vector<ParameterGroup> OneGroup(std::vector<Parameter> parameters) {
  std::vector<ParameterGroup> groups(1);
  groups[0].parameters = std::move(parameters);
  return groups;
}

void CheckBeta(const char* optimizer, const char* name, double value) {
  Check(value >= 0 && value < 1, optimizer, name, " must be in [0, 1) but is ", value);
}

void CheckFromZero(const char* optimizer, const char* name, double value) {
  Check(value >= 0, optimizer, name, " must be at least 0 but is ", value);
}

float Rest(double beta) { return static_cast<float>(1 - beta); }

}  // namespace

Adam::Adam(std::vector<Parameter> parameters, AdamOptions options)
    : Adam(OneGroup(std::move(parameters)), options) {}

Adam::Adam(std::vector<ParameterGroup> groups, AdamOptions o)
    : ElementwiseOptimizer(std::move(groups), o.lr, o.weight_decay,
                           {.settings = {{"optimizer", "Adam"},
                                         {"beta1", ExactText(o.beta1)},
                                         {"beta2", ExactText(o.beta2)},
                                         {"eps", ExactText(o.eps)}},
                            .rates = {.kind = RateKind::kAdam, .beta1 = o.beta1, .beta2 = o.beta2},
                            .rule = update_rules::Adam{.one_minus_beta1 = Rest(o.beta1),
                                                       .beta2 = static_cast<float>(o.beta2),
                                                       .one_minus_beta2 = Rest(o.beta2),
                                                       .eps = static_cast<float>(o.eps)},
                            .moments = {"exp_avg", "exp_avg_sq"}}) {
  CheckBeta("Adam", "beta1", o.beta1);
  CheckBeta("Adam", "beta2", o.beta2);
  CheckFromZero("Adam", "eps", o.eps);
}

Lion::Lion(std::vector<Parameter> parameters, LionOptions options)
    : Lion(OneGroup(std::move(parameters)), options) {}

Lion::Lion(std::vector<ParameterGroup> groups, LionOptions o)
    : ElementwiseOptimizer(std::move(groups), o.lr, o.weight_decay,
                           {.settings = {{"optimizer", "Lion"},
                                         {"beta1", ExactText(o.beta1)},
                                         {"beta2", ExactText(o.beta2)}},
                            .rates = {.kind = RateKind::kLion},
                            .rule = update_rules::Lion{.beta1 = static_cast<float>(o.beta1),
                                                       .one_minus_beta1 = Rest(o.beta1),
                                                       .beta2 = static_cast<float>(o.beta2),
                                                       .one_minus_beta2 = Rest(o.beta2)},
                            .moments = {"exp_avg"}}) {
  CheckBeta("Lion", "beta1", o.beta1);
  CheckBeta("Lion", "beta2", o.beta2);
}

RMSprop::RMSprop(std::vector<Parameter> parameters, RMSpropOptions options)
    : RMSprop(OneGroup(std::move(parameters)), options) {}

RMSprop::RMSprop(std::vector<ParameterGroup> groups, RMSpropOptions o)
    : ElementwiseOptimizer(
          std::move(groups), o.lr, o.weight_decay,
          {.settings = {{"optimizer", "RMSprop"},
                        {"alpha", ExactText(o.alpha)},
                        {"eps", ExactText(o.eps)},
                        {"momentum", ExactText(o.momentum)},
                        {"centered", o.centered ? "true" : "false"}},
           .rates = {},  // as SGD's: the rate and the decay
           .rule = update_rules::RmsProp{.alpha = static_cast<float>(o.alpha),
                                         .one_minus_alpha = Rest(o.alpha),
                                         .eps = static_cast<float>(o.eps),
                                         .momentum = static_cast<float>(o.momentum),
                                         .centered = o.centered},
           .moments = {"square_avg", o.momentum > 0 ? "momentum_buffer" : "",
                       o.centered ? "grad_avg" : ""}}) {
  CheckBeta("RMSprop", "alpha", o.alpha);
  CheckFromZero("RMSprop", "eps", o.eps);
  CheckFromZero("RMSprop", "momentum", o.momentum);
}

Adagrad::Adagrad(std::vector<Parameter> parameters, AdagradOptions options)
    : Adagrad(OneGroup(std::move(parameters)), options) {}

Adagrad::Adagrad(std::vector<ParameterGroup> groups, AdagradOptions o)
    : ElementwiseOptimizer(
          std::move(groups), o.lr, o.weight_decay,
          {.settings = {{"optimizer", "Adagrad"},
                        {"lr_decay", ExactText(o.lr_decay)},
                        {"initial_accumulator_value", ExactText(o.initial_accumulator_value)},
                        {"eps", ExactText(o.eps)}},
           .rates = {.kind = RateKind::kAdagrad, .decay = o.lr_decay},
           .rule = update_rules::Adagrad{.eps = static_cast<float>(o.eps)},
           .moments = {"sum"},
           .initial = o.initial_accumulator_value}) {
  CheckFromZero("Adagrad", "lr_decay", o.lr_decay);
  CheckFromZero("Adagrad", "initial_accumulator_value", o.initial_accumulator_value);
  CheckFromZero("Adagrad", "eps", o.eps);
}

Lamb::Lamb(std::vector<Parameter> parameters, LambOptions options)
    : Lamb(OneGroup(std::move(parameters)), options) {}

Lamb::Lamb(std::vector<ParameterGroup> groups, LambOptions o)
    : Optimizer(std::move(groups), o.lr, o.weight_decay),
      options_(o),
      rule_{.one_minus_beta1 = Rest(o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = Rest(o.beta2),
            .eps = static_cast<float>(o.eps)},
      rates_{.kind = RateKind::kLamb, .beta1 = o.beta1, .beta2 = o.beta2} {
  CheckBeta("LAMB", "beta1", o.beta1);
  CheckBeta("LAMB", "beta2", o.beta2);
  CheckFromZero("LAMB", "eps", o.eps);
}

NamedSettings Lamb::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(), {{"optimizer", "LAMB"},
                                   {"beta1", ExactText(options_.beta1)},
                                   {"beta2", ExactText(options_.beta2)},
                                   {"eps", ExactText(options_.eps)}});
  return settings;
}

Adafactor::Adafactor(std::vector<Parameter> parameters, AdafactorOptions options)
    : Adafactor(OneGroup(std::move(parameters)), options) {}

}  // namespace lathe
