//! A safe wrapper of what we use of HiGHS (highs.dev): pass a linear or mixed-integer program to
//! maximise, run, read the result. The only place of the solver with unsafe code.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use highs_sys as sys;

/// Parts of the objective by which HiGHS may be wrong; the smallest that it accepts is 1e-10.
const TOLERANCE: f64 = 1e-9;

/// A program: maximise `offset + cost x` within bounds of columns and rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    /// Constant part of the objective.
    pub offset: f64,
    cost: Vec<f64>,
    lower: Vec<f64>,
    upper: Vec<f64>,
    integer: Vec<i32>,
    row_lower: Vec<f64>,
    row_upper: Vec<f64>,
    row_start: Vec<i32>,
    index: Vec<i32>,
    coefficient: Vec<f64>,
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Solved; for a mixed-integer program up to rounding.
    Optimal,
    /// There is no solution.
    Infeasible,
    /// Stopped at the time limit or another limit, or by an interrupt.
    Limit,
    /// HiGHS gave up, or says what a correct program can't lead to; its status number.
    Failed(i32),
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// How it ended.
    pub status: Status,
    /// The best solution found, if any; a value per column.
    pub solution: Option<Vec<f64>>,
    /// Duals of the rows of a linear program; empty for a mixed-integer one.
    pub row_duals: Vec<f64>,
    /// What no solution exceeds; infinite when unknown.
    pub bound: f64,
}

/// An instance of HiGHS.
#[derive(Debug)]
pub struct Highs {
    raw: NonNull<c_void>,
}

impl Model {
    /// Adds a column; its number.
    pub fn column(&mut self, cost: f64, lower: f64, upper: f64, is_integer: bool) -> usize {
        self.cost.push(cost);
        self.lower.push(lower);
        self.upper.push(upper);
        self.integer.push(match is_integer {
            true => sys::VAR_TYPE_INTEGER,
            false => sys::VAR_TYPE_CONTINUOUS,
        });
        self.cost.len() - 1
    }

    /// Adds a row: `lower <= sum of coefficient * column <= upper`; its number. Columns must
    /// exist and be named once.
    pub fn row(&mut self, lower: f64, upper: f64, entries: &[(usize, f64)]) -> usize {
        self.row_start.push(self.index.len() as i32);
        self.row_lower.push(lower);
        self.row_upper.push(upper);
        for &(column, coefficient) in entries {
            debug_assert!(column < self.cost.len());
            self.index.push(column as i32);
            self.coefficient.push(coefficient);
        }
        self.row_lower.len() - 1
    }

    /// What the objective is at these values, one per column.
    pub fn value(&self, values: &[f64]) -> f64 {
        let terms = self.cost.iter().zip(values);
        terms.fold(self.offset, |sum, (cost, value)| sum + cost * value)
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.cost.len()
    }

    /// Number of columns that must be whole.
    pub fn integers(&self) -> usize {
        let integers = self.integer.iter();
        integers
            .filter(|&&kind| kind == sys::VAR_TYPE_INTEGER)
            .count()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.row_lower.len()
    }

    /// Whether the program is one that HiGHS may be given: all indices point to columns.
    fn is_sound(&self) -> bool {
        let columns = self.cost.len();
        let fits = |length: usize| i32::try_from(length).is_ok();
        fits(columns)
            && fits(self.row_lower.len())
            && fits(self.index.len())
            && self.index.iter().all(|&index| (index as usize) < columns)
    }
}

impl Highs {
    /// An instance for exact answers on one thread: no gap, no heuristics, restarts or search for
    /// symmetries, which cost more than they bring on allocation problems.
    pub fn new() -> Option<Self> {
        // SAFETY: no preconditions.
        let raw = NonNull::new(unsafe { sys::Highs_create() })?;
        let highs = Self { raw };
        let are_set = highs.set_bool(c"output_flag", false)
            && highs.set_int(c"threads", 1)
            && highs.set_bool(c"mip_allow_restart", false)
            && highs.set_bool(c"mip_detect_symmetry", false)
            && highs.set_heuristics(false)
            && highs.set_real(c"mip_rel_gap", 0.0)
            && highs.set_real(c"mip_abs_gap", 0.0)
            && highs.set_real(c"mip_feasibility_tolerance", TOLERANCE)
            && highs.set_real(c"primal_feasibility_tolerance", TOLERANCE)
            && highs.set_real(c"dual_feasibility_tolerance", TOLERANCE);
        are_set.then_some(highs)
    }

    /// An instance with HiGHS's own settings, but silent, on one thread and without a gap.
    pub fn as_it_comes() -> Option<Self> {
        // SAFETY: no preconditions.
        let raw = NonNull::new(unsafe { sys::Highs_create() })?;
        let highs = Self { raw };
        let are_set = highs.set_bool(c"output_flag", false)
            && highs.set_int(c"threads", 1)
            && highs.set_real(c"mip_rel_gap", 0.0);
        are_set.then_some(highs)
    }

    /// Solves `model` within `limit_s` seconds, which HiGHS is known to exceed at times, from
    /// `start`, a feasible solution, if there is one.
    pub fn solve(&mut self, model: &Model, start: Option<&[f64]>, limit_s: f64) -> Run {
        let failed = |status| Run {
            status: Status::Failed(status),
            solution: None,
            row_duals: Vec::new(),
            bound: f64::INFINITY,
        };
        if !self.set_real(c"time_limit", limit_s.max(0.0)) || !self.pass(model) {
            return failed(sys::MODEL_STATUS_MODEL_ERROR);
        }
        if let Some(values) = start.filter(|values| values.len() == model.columns()) {
            // SAFETY: `raw` is a live instance; `values` has a value for each column; the other
            // pointers may be null, as highs_c_api.h says.
            unsafe {
                sys::Highs_setSolution(
                    self.raw.as_ptr(),
                    values.as_ptr(),
                    ptr::null(),
                    ptr::null(),
                    ptr::null(),
                );
            }
        }
        // SAFETY: `raw` is a live instance with a model.
        let returned = unsafe { sys::Highs_run(self.raw.as_ptr()) };
        // SAFETY: `raw` is a live instance.
        let code = unsafe { sys::Highs_getModelStatus(self.raw.as_ptr()) };
        if returned == sys::STATUS_ERROR {
            return failed(code);
        }
        let status = Status::from_code(code);
        let is_mip = model.integers() > 0;
        let has_solution =
            self.int_info(c"primal_solution_status") == Some(sys::SOLUTION_STATUS_FEASIBLE);
        let (solution, row_duals) = match has_solution {
            true => self.read_solution(model, is_mip),
            false => (None, Vec::new()),
        };
        let bound = match (status, is_mip) {
            (Status::Failed(_), _) => None,
            (_, true) => self.real_info(c"mip_dual_bound"),
            (Status::Optimal, false) => self.real_info(c"objective_function_value"),
            _ => None,
        };
        Run {
            status,
            solution,
            row_duals,
            bound: bound
                .filter(|bound| bound.is_finite())
                .unwrap_or(f64::INFINITY),
        }
    }

    fn pass(&mut self, model: &Model) -> bool {
        if !model.is_sound() {
            return false;
        }
        let is_mip = model.integers() > 0;
        // SAFETY: `raw` is a live instance; every pointer is to as many numbers as highs_c_api.h
        // asks for, checked above: one per column, per row, and per entry of the matrix, whose
        // indices all point to columns. HiGHS copies them.
        let status = unsafe {
            sys::Highs_passMip(
                self.raw.as_ptr(),
                model.cost.len() as i32,
                model.row_lower.len() as i32,
                model.index.len() as i32,
                sys::MATRIX_FORMAT_ROW_WISE,
                sys::OBJECTIVE_SENSE_MAXIMIZE,
                model.offset,
                model.cost.as_ptr(),
                model.lower.as_ptr(),
                model.upper.as_ptr(),
                model.row_lower.as_ptr(),
                model.row_upper.as_ptr(),
                model.row_start.as_ptr(),
                model.index.as_ptr(),
                model.coefficient.as_ptr(),
                match is_mip {
                    true => model.integer.as_ptr(),
                    false => ptr::null(),
                },
            )
        };
        status != sys::STATUS_ERROR
    }

    fn read_solution(&self, model: &Model, is_mip: bool) -> (Option<Vec<f64>>, Vec<f64>) {
        let mut values = vec![0.0; model.columns()];
        let mut duals = vec![0.0; model.rows()];
        let duals_at = match is_mip {
            true => ptr::null_mut(),
            false => duals.as_mut_ptr(),
        };
        // SAFETY: `raw` is a live instance whose model has as many columns and rows as `model`;
        // the other pointers may be null, as highs_c_api.h says.
        let status = unsafe {
            sys::Highs_getSolution(
                self.raw.as_ptr(),
                values.as_mut_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                duals_at,
            )
        };
        if status == sys::STATUS_ERROR {
            return (None, Vec::new());
        }
        if is_mip {
            duals.clear();
        }
        (Some(values), duals)
    }

    fn set_heuristics(&self, are_on: bool) -> bool {
        [
            c"mip_heuristic_run_feasibility_jump",
            c"mip_heuristic_run_rins",
            c"mip_heuristic_run_rens",
            c"mip_heuristic_run_root_reduced_cost",
        ]
        .into_iter()
        .all(|option| self.set_bool(option, are_on))
            && (are_on || self.set_real(c"mip_heuristic_effort", 0.0))
    }

    fn set_bool(&self, option: &CStr, value: bool) -> bool {
        // SAFETY: `raw` is a live instance, `option` a C string.
        let status = unsafe {
            sys::Highs_setBoolOptionValue(self.raw.as_ptr(), option.as_ptr(), value.into())
        };
        status == sys::STATUS_OK
    }

    fn set_int(&self, option: &CStr, value: i32) -> bool {
        // SAFETY: `raw` is a live instance, `option` a C string.
        let status =
            unsafe { sys::Highs_setIntOptionValue(self.raw.as_ptr(), option.as_ptr(), value) };
        status == sys::STATUS_OK
    }

    fn set_real(&self, option: &CStr, value: f64) -> bool {
        // SAFETY: `raw` is a live instance, `option` a C string.
        let status =
            unsafe { sys::Highs_setDoubleOptionValue(self.raw.as_ptr(), option.as_ptr(), value) };
        status == sys::STATUS_OK
    }

    fn int_info(&self, name: &CStr) -> Option<i32> {
        let mut value = 0;
        // SAFETY: `raw` is a live instance, `name` a C string, `value` outlives the call.
        let status =
            unsafe { sys::Highs_getIntInfoValue(self.raw.as_ptr(), name.as_ptr(), &mut value) };
        (status == sys::STATUS_OK).then_some(value)
    }

    fn real_info(&self, name: &CStr) -> Option<f64> {
        let mut value = 0.0;
        // SAFETY: `raw` is a live instance, `name` a C string, `value` outlives the call.
        let status =
            unsafe { sys::Highs_getDoubleInfoValue(self.raw.as_ptr(), name.as_ptr(), &mut value) };
        (status == sys::STATUS_OK).then_some(value)
    }
}

impl Drop for Highs {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live instance, and this is its last use.
        unsafe { sys::Highs_destroy(self.raw.as_ptr()) }
    }
}

impl Status {
    /// Every model status of highs_c_api.h; what is not known there is a failure.
    fn from_code(code: i32) -> Self {
        match code {
            sys::MODEL_STATUS_OPTIMAL | sys::MODEL_STATUS_MODEL_EMPTY => Self::Optimal,
            sys::MODEL_STATUS_INFEASIBLE => Self::Infeasible,
            sys::MODEL_STATUS_OBJECTIVE_BOUND
            | sys::MODEL_STATUS_OBJECTIVE_TARGET
            | sys::MODEL_STATUS_REACHED_TIME_LIMIT
            | sys::MODEL_STATUS_REACHED_ITERATION_LIMIT
            | sys::MODEL_STATUS_REACHED_SOLUTION_LIMIT
            | sys::MODEL_STATUS_REACHED_INTERRUPT
            | sys::MODEL_STATUS_HIGHS_INTERRUPT
            | sys::MODEL_STATUS_REACHED_MEMORY_LIMIT => Self::Limit,
            // Not set, errors on load, in the model, presolve, solve and postsolve, unbounded
            // (every program of ours is bounded), unknown.
            other => Self::Failed(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three things of 5, 4 and 3 kg, worth 5, 4 and 3; 10 kg may be carried.
    fn knapsack(is_integer: bool) -> Model {
        let mut model = Model {
            offset: 1.0,
            ..Model::default()
        };
        let things: Vec<(usize, f64)> = [5.0, 4.5, 3.0]
            .into_iter()
            .map(|weight| (model.column(weight, 0.0, 1.0, is_integer), weight))
            .collect();
        model.row(f64::NEG_INFINITY, 10.0, &things);
        model
    }

    #[test]
    fn a_mixed_integer_program_is_solved_with_its_bound() {
        let run = Highs::new().unwrap().solve(&knapsack(true), None, 10.0);
        assert_eq!(run.status, Status::Optimal);
        assert_eq!(run.solution.unwrap(), [1.0, 1.0, 0.0]);
        assert!((run.bound - 10.5).abs() < 1e-9);
        assert!(run.row_duals.is_empty());
    }

    #[test]
    fn a_linear_program_has_duals() {
        let run = Highs::new().unwrap().solve(&knapsack(false), None, 10.0);
        assert_eq!(run.status, Status::Optimal);
        assert!((run.bound - 11.0).abs() < 1e-9);
        assert!((run.row_duals[0].abs() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn without_time_or_solution_the_status_says_so() {
        let mut highs = Highs::new().unwrap();
        assert_eq!(
            highs.solve(&knapsack(false), None, 0.0).status,
            Status::Limit
        );
        let mut impossible = knapsack(true);
        impossible.row(20.0, f64::INFINITY, &[(0, 1.0)]);
        let run = highs.solve(&impossible, None, 10.0);
        assert_eq!((run.status, run.solution), (Status::Infeasible, None));
        let again = highs.solve(&knapsack(true), Some(&[1.0, 0.0, 1.0]), 10.0);
        assert_eq!(again.status, Status::Optimal);
    }

    #[test]
    fn a_program_that_makes_no_sense_is_an_error_not_a_crash() {
        let mut highs = Highs::new().unwrap();
        let mut wrong = knapsack(true);
        wrong.index[0] = 77;
        assert!(matches!(
            highs.solve(&wrong, None, 10.0).status,
            Status::Failed(_)
        ));
        let mut not_a_number = knapsack(true);
        not_a_number.cost[0] = f64::NAN;
        highs.solve(&not_a_number, None, 1.0);
        let run = highs.solve(&knapsack(true), None, 10.0);
        assert_eq!(run.status, Status::Optimal);
    }

    #[test]
    fn every_status_that_highs_knows_is_mapped() {
        let known = sys::MODEL_STATUS_MIN..=sys::MODEL_STATUS_MAX;
        let good = known.filter(|&code| !matches!(Status::from_code(code), Status::Failed(_)));
        assert_eq!(
            good.collect::<Vec<_>>(),
            [6, 7, 8, 11, 12, 13, 14, 16, 17, 18, 19]
        );
        assert_eq!(Status::from_code(4711), Status::Failed(4711));
    }
}
