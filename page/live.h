/*
 * live.h - the model behind the live page: told what to do by lines of text, so that a lesson is
 * lines which the page (through WebAssembly) and a native program run with the same numbers.
 *
 * One model at a time. Lines, words separated by spaces; [..] may be left out:
 *
 *   data spirals|circles|xor [NOISE]   400 points of 2 numbers in [-1, 1], 2 classes; 300 to train
 *   data points                        those given by `point X Y CLASS` from here on; all to train
 *   data digits                        8 x 8 images of 10 classes out of live_room's bytes: 65 a
 *                                      digit, 64 values 0..16 and its class; 4 of 5 to train
 *   data text                          live_room's characters, each to be told from those
 *                                      before it, 32 at a time; the last tenth to test
 *   seed N                             of weights, batches, masks and noise (default 1)
 *   model                              an empty model; its layers are numbered from 0
 *   layer linear N [nobias]            N outputs; the number of inputs follows from what is before
 *   layer conv N [nobias]              N channels, 3 x 3, padding 1: images only
 *   layer relu|tanh|sigmoid|gelu|leaky_relu|silu|identity
 *   layer batch_norm [MOMENTUM]        share of a new batch in the statistics, default 0.1
 *   layer layer_norm
 *   layer dropout P
 *   layer pool                         maximum of 2 x 2
 *   layer flatten
 *   layer embedding N                  ids of characters to N numbers each: text only
 *   layer table                        a positional table (buffer), added
 *   layer block HEADS                  a transformer's block with causal attention, pre-norm
 *   tie                                the output layer's weight is the embedding's
 *   build                              adds the output layer (linear; 1, 10 or the number of
 *                                      characters) and makes the model and its optimizer
 *   optimizer sgd|momentum|adam|adamw|rmsprop [RATE [DECAY]]      may follow build: state is lost
 *   rate X | decay X | clip NORM (0: none) | warmup STEPS | batch N
 *   no_decay_on_norms on|off           decay spares biases and norms
 *   mode train|eval                    what the model is put in for steps
 *   judge eval|train                   and for accuracies, losses and the surface (default eval)
 *   freeze LAYER on|off
 *   step [N]                           N whole training steps
 *   forward | backward | update        the three parts of one step, in this order
 *   evaluate [N]                       numbers of `test_...` and `train_...`, of at most N examples
 *   give NAME                          hands that slot to a new optimizer; what it says is
 *                                      live_text("refusal")
 *   weight NAME INDEX VALUE            sets a number of a parameter; fill NAME VALUE: all of them;
 *                                      copy NAME OTHER: to those of another one
 */
#pragma once

/** Does a line. "" or what was wrong with it, valid until the next call; then nothing changed, but
 *  after a wrong `build` there is no model. */
const char *live_do(const char *line);

/**
 * A number, NaN if there is none:
 *   step   loss (of the last batch)   rate (of the last step)   clip_factor   grad_norm
 *   test_loss, test_accuracy, train_loss, train_accuracy (after `evaluate`)   parameters
 *   classes   batch   seconds (of the processor, by steps)
 *   norm NAME | grad NAME    L2 norms of a slot and of its gradient (NaN: it has none)
 *   mean NAME | max NAME     of a slot
 *   act L mean | act L std | act L zeros      of layer L's last output; zeros: a share
 *   moved NAME               L2 distance of a slot from what it was at `build`
 */
double live_number(const char *what);

/**
 * Numbers, f32, live_count() of them, valid until the next call; NULL if there are none:
 *   slot NAME | grad NAME        a parameter or buffer, its gradient after `backward`
 *   act L | act_grad L           layer L's last output and its gradient; L -1: the batch
 *   batch_mean L | batch_var L   of the last batch, as batch norm L saw it (var: unbiased)
 *   surface N                    2-D data: the probability of class 1 on N x N places of
 *                                [-1.2, 1.2]^2, row 0 at the top
 *   attention L HEAD             block L: weights [T, T] of the last batch's first text
 *   train_x | test_x             points [n, 2]
 *   train_y | test_y             their classes [n]
 *   next TEXT                    text: probabilities of the character that comes after it
 *   draw V0 ... V63              digits: probabilities of the classes for an image drawn, 0..16
 */
const float *live_values(const char *what);
int live_count(void);

/**
 * Text, valid until the next call:
 *   model     JSON: {"layers": [{"kind": "linear", "name": "0", "shape": [32, 8]}, ...] (shape: of
 *             its last output, [] if none), "slots": [{"name": "0.weight", "shape": [8, 2],
 *             "kind": "parameter" | "buffer", "role": "statistic", "trained": true, "layer": 0}]}
 *   refusal   what an optimizer said when it was given a buffer
 *   sample N  text: N characters that the model writes
 *   alphabet  text: the characters in the order of their ids
 */
const char *live_text(const char *what);

/** Room for n bytes of digits or text, the page's to fill; NULL: no memory. */
void *live_room(int n);
