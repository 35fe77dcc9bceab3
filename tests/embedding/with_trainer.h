// The part of the embedding program that trains with Trainer instead of a loop of its own.
#pragma once

namespace app {

// Trains a tiny classifier with Lathe's Trainer and a callback of the program's own. Returns true
// if the callback ended the training as soon as the loss was low.
bool LearnsWithTrainer();

}  // namespace app
