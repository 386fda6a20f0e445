"""The constants of the search for a step size."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Constants of the search for a step size, each with what smaller and larger values do.

    They were chosen on least squares, logistic, Huber and softmax problems over five graphs, for
    gradient tracking, EXTRA, exact diffusion and push-DIGing, where a run with the step size found
    takes 1.00 (median), at most 1.43 times the steps of the best one; held-out problems agree.
    """

    # -- the tolerance, and numbers that float64 holds ---------------------------------------------

    # Relative error to which steps are counted.  Larger: the step size that is best at first, not
    # in the limit.  Smaller: a long run is judged by digits that nobody reads.
    tolerance: float = 1e-6
    # Smoothness constant, and its inverse.  Larger: its square is not a number of float64.
    largest_smoothness: float = 1e150
    # What stands for zero in logarithms and quotients, such as those of distances: it is smaller
    # than what float64 tells from zero beside other numbers.
    tiny: float = 1e-300

    # -- the estimated minimizer -------------------------------------------------------------------

    # Norm of the last gradient relative to the first one.  Larger: of 1e-4, and without the margin,
    # 3 of 248 step sizes were too large.  Smaller: gradients that no step size is better for.
    vanished: float = 1e-6
    # Evaluations, at most.  With 5, 43 of 248 searches failed, with 15 one; more than 200 cost more
    # than Newton's step that corrects the point afterwards.
    most_evaluations: int = 200
    # Relative error of the difference of two values.  Smaller: rounding errors hide a quadratic
    # function, and L-BFGS goes on in vain.  Larger: a nearly quadratic one counts as quadratic.
    rounding: float = 1e-12
    # Gradients of the power method for the first bound of the curvature.  Fewer: the first proximal
    # steps are too long; the bound grows on the way, so more are not needed.
    power: int = 4
    # Newton's steps.  The second one corrects rounding errors of the first; a third one adds none.
    newton: int = 2

    # -- the linear model --------------------------------------------------------------------------

    # Largest n r^2, the numbers of all curvatures: 1 MB.  Larger: a step of a race leaves the
    # cache.
    entries: int = 2**17
    # Dimensions with full curvatures: d + 1 gradients.  Larger: the search costs more gradients
    # than a run; smaller: projected curvatures where full ones are cheap.
    most_dimensions: int = 100
    # Lanczos vectors of the average Hessian.  Fewer: the slowest mode is missed; more: gradients.
    krylov: int = 24
    # Those of each agent alone, of which the top vector is taken; it needs to be rough only.
    own_krylov: int = 8
    # Agents whose top vectors are dimensions: the steepest ones limit the step size.  Fewer: it is
    # unstable along those left out; more: dimensions that do not matter.
    agents: int = 32
    # Agents whose directions of largest curvature the first steps of a short run may meet.
    steepest: int = 4
    # Largest n d of rows that rank 0 gathers: 160 MB.
    stack: int = 2 * 10**7
    # Largest number of entries of all products of a basis with the curvatures of all agents: 1 GB.
    # Larger: they do not fit into memory beside the run; smaller: these gradients are taken twice.
    images: int = 2**27
    # Random draws of each agent's gradients.  Fewer: their noise has the wrong size in long runs;
    # more: the search costs more than the run (4 draws are taken in short ones).
    draws: int = 16
    fewest_draws: int = 4
    # Times as many draws with variance reduction, whose step size the rare large samples limit.
    more_draws: int = 4
    # Noise of a gradient with reduced variance, which is that of e and of an earlier e, relative to
    # that of a batch at e: two independent ones of the same size.
    remembered: float = math.sqrt(2.0)
    # Part of the curvature at the minimizer; with less far away the slope of a function is bounded.
    flatter: float = 0.5
    # Distance at which the slope of a gradient is measured, in units of the minimizer's norm.
    # Smaller: curvature is not over yet; larger: cancellation.
    far_away: float = 1e3
    # Gradients for the curvatures, and as many for the minimizer, in any run.  Fewer: see
    # `most_evaluations`; more: a search that costs more than a short run.
    fewest_gradients: int = 15
    # A search takes at most 1 / `part_of_gradients` of those of the run, for each of the two.
    part_of_gradients: int = 4
    # Width of the differences of gradients in units of the point's norm, and the least norm.
    # Larger: third derivatives; smaller: rounding errors of the gradients, about 1e-16 / 1e-6 of
    # them.
    width: float = 1e-6
    least_point: float = 1e-3
    # Gradients from which on differences over a wider distance are tried, the least relative change
    # of a gradient that has enough digits, and the factor of the distance.
    large: float = 1e6
    digits: float = 1e-10
    wider: float = 1e3
    # Relative size of a direction that is left out.  Smaller: rounding errors are dimensions.
    negligible: float = 1e-6
    # The same of an eigenvalue.
    rounded: float = 1e-14

    # -- the window of a race ----------------------------------------------------------------------

    # Octaves below `highest`.  Fewer: a second race below it is needed; the best were
    # .03 to 34 / L.
    span: int = 6
    # Step sizes in a factor of 2.  With 2, steps(auto) / steps(best) is 1.12 (median), 1.42 (most);
    # with 8 the race costs twice as much for 9 % at most.
    per_octave: int = 4
    # Largest step size in units of 1 / L.  Gradient descent is stable up to 2; larger ones are
    # right where agents move between their own minimizers, and found by going higher.
    highest: float = 2.4
    # That of solvers that minimize the agents' functions, which are stable with any step size.
    highest_implicit: float = 64.0
    # Step sizes of these in a factor of 2, over twice the octaves: their optimum is flat.
    per_octave_implicit: int = 2
    # Largest over typical curvature from which such a race begins higher, so as to reach the step
    # size of slow directions.
    wide_spectrum: float = 1e3
    # Octaves, and the highest step size in units of `highest`, of schedules that decrease: their
    # start may be much larger than a constant step size; more so where slopes are bounded.
    span_decreasing: int = 10
    higher_decreasing: int = 16
    span_bounded: int = 13
    higher_bounded: int = 128
    # Octaves by which a race begins higher if its largest step size is the best, and races.
    higher: int = 3
    races: int = 3
    # Agents from which on there is no race, whose rows one process would hold, and fewer step sizes
    # and steps are tried for the safe bound.
    most_agents: int = 10_000

    # -- a race to a tolerance ---------------------------------------------------------------------

    # The race is run with step sizes so much larger than those returned, which are then not at the
    # edge of stability.  1.00: 3 of 248 too large; 1.10: median 1.10, and a case missed.
    margin: float = 1.05
    # That of variance reduction is larger, as few draws of its gradients are known.
    reduced_part: float = 0.85
    # Steps of a race: the first comparison, which doubles up to the last.  Shorter at first:
    # transients decide.  512 at most: .12 times the best step size where the run takes > 20000.
    shortest_race: int = 32
    longest_race: int = 4096
    # The race ends after 1 / `part_of_run` of the predicted steps, if it has `enough`.  Sooner:
    # slow instabilities are not seen; later: a search longer than the run.
    part_of_run: int = 4
    enough: int = 512
    # A candidate drops out at so many strikes in a row: predictions longer than `patience` times
    # the least.  One strike: 8 of 182 good step sizes dropped out in their transients.
    strikes: int = 2
    patience: float = 1.25
    # The patience of the first comparisons, up to `transient_steps`.
    patience_at_first: float = 2.5
    transient_steps: int = 128
    # Error in units of the least, from which a candidate drops out at once: it diverges.
    behind: float = 1e3
    # Largest error on the way in units of the first one: of larger ones float64 loses all digits.
    transient: float = 1e6
    # Part of the noise in the start with a term: from farther away, steps may grow that the run
    # does not meet; without any, slow instabilities are not seen.
    noise: float = 0.03
    # Part of the tolerance below which errors are not compared where the model has a term: a face
    # is reached in finitely many steps, and there is no rate after.
    reached: float = 1e-3
    # Part of the first distance with which there is a second race where there is a term.
    near_minimizer: float = 0.1
    # Smaller neighbours that are tried until one is stable, with those of the margin: 3 octaves.
    stability_checks: int = 12
    # Error in units of the first one, up to which growth is a transient.
    growth: float = 10.0

    # -- a race to the end of the run --------------------------------------------------------------

    # Steps after which the error of methods with bias is extrapolated.  Fewer: the bias is not
    # there yet; more: the search is longer than the run.
    horizon: int = 4096
    # Steps of a race of step sizes that are raced one by one, and of a check of stability.
    few_steps: int = 512
    # Errors that are compared: one fluctuates, and the mean square of 9 little; without noise three
    # tell the limit of a geometric sequence.
    noisy_marks: int = 9
    marks: int = 3
    # Part of a run in which errors are compared, and of one with losses or channel noise, whose
    # errors take longer to be stationary.
    last_half: float = 0.5
    last_part: float = 0.25

    # -- trial runs with the problem itself --------------------------------------------------------

    # A trial run takes 1 / `trial_part` of the steps of a run, and at least `fewest_steps`, of
    # which each quarter is compared.
    trial_part: int = 32
    fewest_steps: int = 16
    # Step sizes around the choice, in factors of sqrt(2), where the model is wrong about it.
    larger: int = 5
    smaller: int = 4
    # Ratio of two predictions that agree.
    agree: float = 1.1
    # Steps of a trial run; with reduced variance, whose gradients are cheap.
    longest_trial: int = 512
    longest_reduced: int = 2048
    # Trial runs with variance reduction, each with a step size smaller by sqrt(2): down to 1 / 11.
    most_trials: int = 8
    # Part of the predicted steps that a trial run may need: about a notch of the race.
    as_said: float = 1.25
    # Part of the steps that other weights, or larger steps, must save: less is chance.
    clearly: float = 0.95

    # -- codecs ------------------------------------------------------------------------------------

    # Parts of the choice that are tried.  Less than 1 / 16: no step size makes progress.
    codec_parts: tuple[float, ...] = (1.0, 0.7, 0.5, 0.35, 0.25, 0.125, 0.0625)
    # Steps of a try, and as many again; what may be left of the error after the first ones, and in
    # the further ones, relative to the first error.
    codec_steps: int = 512
    codec_progress: float = 0.5
    codec_still: float = 0.98

    # -- the safe bound ----------------------------------------------------------------------------

    # Part of the largest stable step size for equal curvatures, for agents of different ones; in
    # units of 1 / L where none is stable.
    safe_part: float = 0.5
    unstable_part: float = 0.25
    # Curvatures in units of L, from the least one, and how many; few of them for many agents.
    flattest: float = 1e-3
    curvatures: int = 6
    few_curvatures: int = 2
    # Octaves below 2 / L: two step sizes in each, and for many agents, one in fewer octaves.
    safe_octaves: int = 7
    few_octaves: int = 6
    safe_steps: int = 512
    few_safe_steps: int = 64
    # Growth in the second half that is rounding, and the part of the start that is convergence.
    still: float = 1.02
    converged: float = 1e-3

    # -- the guard of the run, and further attempts ------------------------------------------------

    # Attempts with smaller step sizes.  The first ones are gentle, as the step size was nearly
    # right; a model that is wrong altogether then needs few: 4 * 8^4 in all.
    attempts: int = 6
    gentle: int = 2
    factor: float = 2.0
    strong_factor: float = 8.0
    # Distances from the minimizer in units of the first one: on the way a transient may be large,
    # at the end it is over.
    explosion: float = 1e6
    farther: float = 1e3
    # Part of the distance that may be left at half of the way with variance reduction, in the
    # first attempts.
    left: float = 0.1
    # The least first distance in units of the minimizer: a run may begin there.
    at_minimizer: float = 1e-3
    # The first check is after 2^5 steps, and the next at powers of 2: transients are over.
    first_check: int = 32

    # -- growth on a schedule ----------------------------------------------------------------------

    # Steps, and cycles of the schedule at least.  Fewer: slow growth looks like none; more:
    # seconds.
    shortest_growth: int = 256
    longest_growth: int = 2048
    cycles: int = 4
    # Growth over half of the steps: an instability, and none.  In between, it is run for longer.
    fast: float = 10.0
    no_growth: float = 1.05
    # A disagreement beyond which squares would overflow.
    overflows: float = 1e100
    # Agents, all of which one process holds.
    most_growing: int = 1500

    # -- asynchronous runs -------------------------------------------------------------------------

    # The window: the largest stable step size is more uncertain than of synchronous steps.
    span_events: int = 9
    highest_events: float = 4.8
    span_events_decreasing: int = 13
    # Steps of a race, and its events, each of which is a call in Python: 2^15 take about a second.
    least_events: int = 128
    most_events: int = 2**15
    # Events of each agent at least.
    events_each: int = 32


TUNING = Tuning()
